"""Blocks in which tuned kernels compute PyTorch's products: how calls inside of them are caught, by thread."""

import contextlib
import contextvars
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch._C import _dispatch_key_parse, _dispatch_tls_set_dispatch_key_included
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from tuner.python import misses
from tuner.python.requests import PRECISION, precision_of
from tuner.torch import eager, operators
from tuner.torch.replacements import PRODUCTS, Held, decision_of, exchanged, leaves_tf32

#: Products inside of `use` meet this key of PyTorch's dispatcher first. Threads outside do not include it, and
#: what is no product passes by: PyTorch, which has it for others (torchdistx), has no kernel for it.
KEY = "DeferredInit"
_include = functools.partial(_dispatch_tls_set_dispatch_key_included, _dispatch_key_parse(KEY))
#: The innermost block, and the one around it.
_BLOCK: contextvars.ContextVar[Any] = contextvars.ContextVar("block", default=None)
#: The blocks of all threads: what holds in each, and the policy on misses around it.
_ENTERED: list[tuple[Held, Any]] = []
#: Such a block -> its number, as native code knows it.
_NUMBERS: dict[tuple[Held, Any], int] = {}
_ATEN, _OURS = torch.library.Library("aten", "IMPL"), torch.library.Library("tuner", "FRAGMENT")
_ALL = torch.library.Library("_", "IMPL")
_ALL.fallback(torch.library.fallthrough_kernel, KEY)
#: One for each content: compiled programs know it by its identity.
_held = functools.cache(Held)
#: Types of tensors that kernels take.
_TYPES = {Tensor, nn.Parameter}


def _settle() -> None:
    """Says what holds in all blocks, if it is the same in all, and products are not collected."""
    holding = {*_ENTERED, *((held, policy) for held, _ in _ENTERED for policy in misses.OPEN)}
    number = _NUMBERS.setdefault(next(iter(holding)), len(_NUMBERS) + 1) if len(holding) == 1 else 0
    eager.HELD[0] = 0 if operators.COLLECTORS else number


def _override(operator: str, native: Any) -> None:
    """Has an operator of PyTorch replaced in threads inside of `use`."""
    name, _, overload = operator.partition(".")
    plain = getattr(torch, name, nn.functional.linear)

    def run(*given: Any, **more: Any) -> Any:
        _include(False)
        try:
            # A thread of autograd has the key of the one that asks, and no block: what all blocks hold, holds.
            block, entered = _BLOCK.get(), {held for held, _ in _ENTERED}
            held = block[0][0] if block else entered.pop() if len(entered) == 1 else None
            # Tensors of other types are those of a program that is compiled; of tangents kernels know nothing.
            foreign = type(given[0]) not in _TYPES or forward_ad._current_level >= 0
            elsewhere = given[0].device.type not in operators.KERNELS_ON and not operators.COLLECTORS
            if held is None or foreign or elsewhere:
                return plain(*given, **more)
            before = eager.HELD[0], misses.EPOCH[0] + misses.TURNS[0]
            _settle()
            with eager.noted() as queued:
                replaced = _replaced(plain, held, given, more)
                result = plain(*given, **more) if replaced is NotImplemented else replaced
            if native is not None and plain in PRODUCTS and native.tuner_asks():
                decision = None if replaced is NotImplemented else decision_of(PRODUCTS[plain](*given), held)
                tensors = [one for one in given if one is not None]
                eager.keep(native, before, tensors, result, decision, queued)
            return result
        finally:
            _include(True)

    if native is None or plain not in PRODUCTS:
        _ATEN.impl(operator, run, KEY)
        return
    schema = getattr(getattr(torch.ops.aten, name), overload or "default")._schema
    ours = f"eager_{operator.replace('.', '_')}"
    _OURS.define(ours + str(schema).partition(operator)[2])
    _OURS.impl(ours, run, "CompositeImplicitAutograd")


@functools.cache
def _override_all() -> None:
    """Replaces PyTorch's operators in threads inside of `use`, once."""
    device = next(iter(operators.KERNELS_ON))
    native = eager.library(device) if device != "cuda" or torch.cuda.is_available() else None
    outs = "mm.out", "bmm.out", "addmm.out"  # which compiled programs call
    for operator in ("linear", "matmul", "mm", "bmm", "addmm", "_scaled_mm", "_grouped_mm", *outs):
        _override(operator, native)


def _replaced(plain: Any, held: Held, given: Sequence[Any], more: Mapping[str, Any]) -> Any:
    """What an operator becomes in eager mode; NotImplemented for what is left to PyTorch."""
    tensors = [one for one in (*given, *more.values()) if isinstance(one, Tensor)]
    odd = any(type(one) not in _TYPES or one.is_nested or torch._is_zerotensor(one) for one in tensors)
    if odd or torch._C._are_functorch_transforms_active():
        return NotImplemented
    return exchanged(plain, held, given, **more)


class use(TorchFunctionMode, contextlib.ContextDecorator):  # noqa: N801 - called as a function is
    """Sends products of matrices inside a block, a function or a module to tuned kernels.

    ``linear``, ``matmul``, ``@``, ``mm``, ``bmm``, ``addmm`` with a bias, and ``_scaled_mm`` of e4m3 run as
    `tuner.matmul` does: a kernel where it was measured to be faster, else the library; ``grouped_mm`` of rows
    in groups as `tuner.grouped`. Any number of leading dims is one product, or one of stacks. Gradients of a
    kernel's product are products of their own layouts, in the same precision, wherever ``backward`` is called;
    those of PyTorch's own are replaced inside of a block, those of groups' matrices never.
    Sparse tensors and other dtypes are left to PyTorch. Under autocast operands are
    cast as PyTorch casts them. ``use(...)(module)`` returns the module, whose calls then run inside; its state
    dict is unchanged. Threads outside are not concerned; autograd's, which work for the block, are inside. Of a
    program that was compiled outside of the block those products are replaced that run in it.
    """

    def __init__(self, precision: str = "", *, bits: str = "") -> None:
        """Sets what holds inside.

        Args:
            precision: ``ieee`` or ``emulated``, for products in float32; empty for that of the surrounding
                `tuner.precision`, else of TUNER_PRECISION.
            bits: ``library`` for results with the library's bits, gradients included; empty for any.

        Raises:
            UnknownName: No such precision, or bits.
        """
        super().__init__()
        bits = misses.checked(bits, "class of bits", misses.BITS)
        self._held = _held(precision and precision_of(precision), bits)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replaces what `PRODUCTS` and `REPLACED` name while a program is compiled; called by PyTorch."""
        result = exchanged(func, self._held, args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if result is NotImplemented else result

    def __enter__(self) -> Self:
        """Begins the block, in this thread."""
        if torch.compiler.is_compiling():
            return super().__enter__()
        _override_all()
        held = self._held._replace(precision=self._held.precision or PRECISION.get())
        block = held._replace(tf32=leaves_tf32(held.precision)), misses.CHOSEN.get()
        _BLOCK.set((block, _BLOCK.get()))
        _ENTERED.append(block)
        if len(_ENTERED) > 1 or misses.OPEN or eager.HELD[0] != _NUMBERS.get(block):
            _settle()
        _include(True)
        return self

    def __exit__(self, *error: object) -> None:
        """Ends it."""
        if torch.compiler.is_compiling():
            return super().__exit__(*error)
        block, around = _BLOCK.get()
        _ENTERED.remove(block)
        _BLOCK.set(around)
        if _ENTERED:  # else the next block most often is such a one
            _settle()
        return _include(around is not None)

    def __call__(self, of: Any) -> Any:
        """Makes a function, or a module, always run inside."""
        if isinstance(of, nn.Module):
            of.forward = super().__call__(of.forward)
            return of
        return super().__call__(of)


@contextlib.contextmanager
def collected() -> Iterator[set[operators.Product]]:
    """The products that are asked for inside of the block, by any thread."""
    products: set[operators.Product] = set()
    operators.COLLECTORS.append(products)
    _settle()
    try:
        yield products
    finally:
        operators.COLLECTORS.remove(products)
        _settle()
