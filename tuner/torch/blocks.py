"""Blocks in which tuned kernels compute PyTorch's products: how calls inside of them are caught, by thread."""

import contextlib
import contextvars
import functools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch._C import _dispatch_key_parse, _dispatch_tls_set_dispatch_key_included
from torch.autograd import forward_ad
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.overrides import TorchFunctionMode

from tuner.declare.problem import PRECISIONS
from tuner.devices.cuda.native import NOTED
from tuner.python import decisions, functions, misses
from tuner.python.misses import CHOSEN
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
#: Locked while a thread says what holds; free in a forked process.
_SETTLING = threading.Lock()
os.register_at_fork(after_in_child=_SETTLING._at_fork_reinit)  # type: ignore[attr-defined]
#: Precision of a call of `tuner.matmul`, or block -> its number, as native code knows it.
_CALLS = {precision: -number for number, precision in enumerate(PRECISIONS, 1)}
_NUMBERS: dict[tuple[Held, Any], int] = {}
_ATEN, _OURS = torch.library.Library("aten", "IMPL"), torch.library.Library("tuner", "FRAGMENT")
_ALL = torch.library.Library("_", "IMPL")
_ALL.fallback(torch.library.fallthrough_kernel, KEY)
#: Precision and bits -> what holds: compiled programs know it by its identity.
_HELD = {(name, bits): Held(name, bits) for name in ("", *PRECISIONS) for bits in misses.BITS}
#: What is replaced; compiled programs call those with `out`.
_WITH_OUT = "matmul", "mm", "bmm", "addmm"
_OPERATORS = "linear", "_scaled_mm", "_grouped_mm", *_WITH_OUT, *(f"{name}.out" for name in _WITH_OUT)
#: What `_override_all` returns, once it has run.
_NATIVE: list[Any] = []
#: Types of tensors that kernels take.
_TYPES = {Tensor, nn.Parameter}


def _settle() -> None:
    """Says what holds in all blocks, if it is the same in all, and products are not collected."""
    with _SETTLING:
        holding = {*_ENTERED, *((held, policy) for held, _ in _ENTERED for policy in misses.OPEN)}
        number = _NUMBERS.setdefault(next(iter(holding)), len(_NUMBERS) + 1) if len(holding) == 1 else 0
        eager.HELD[0] = 0 if operators.COLLECTORS else number


#: A block by the fields of `Held`, and the policy on misses around it.
_block = functools.cache(lambda *holding: (Held(*holding[:-1]), holding[-1]))


def _override(operator: str, native: Any) -> None:
    """Has an operator of PyTorch replaced in threads inside of `use`."""
    name, _, overload = operator.partition(".")
    plain = getattr(torch, name, nn.functional.linear)

    def run(*given: Any, **more: Any) -> Any:
        _include(False)
        try:
            # A thread of autograd has the key of the one that asks, and no block: what all blocks hold, holds.
            block, entered = _BLOCK.get(), {each[0] for each in _ENTERED}
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


def _override_all() -> Any:
    """Replaces PyTorch's operators in threads inside of `use`, once; the native code, if it can be had."""
    if not _NATIVE:
        with decisions.LOCK:
            if not _NATIVE:
                device = next(iter(operators.KERNELS_ON))
                native = eager.library(device) if device != "cuda" or torch.cuda.is_available() else None
                for operator in _OPERATORS:
                    _override(operator, native)
                _NATIVE.append(native)
    return _NATIVE[0]


def direct(a: Any, b: Any, out: Any, precision: str) -> Any:
    """A product of `tuner.matmul` outside of blocks, by native code; what Python runs once, that keeps.

    Args:
        a: A tensor.
        b: As of `tuner.matmul`.
        out: As of `tuner.matmul`.
        precision: As of `tuner.matmul`.

    Returns:
        The result; None for what native code does not know.
    """
    if is_dynamo_compiling():
        with use(precision):
            return torch.matmul(a, b, out=out)
    precision = precision or PRECISION.get()
    number, native = _CALLS.get(precision), _override_all()
    # Inside of a block the library's product is the block's; what native code launches is not noted.
    if number is None or native is None or not native.multiply or _BLOCK.get() or CHOSEN.get() or NOTED:
        return None
    result = native.multiply(a, b, out, number)
    if result is None and native.tuner_asks():
        before = number, misses.EPOCH[0] + misses.TURNS[0]
        with eager.noted() as queued:
            result = functions.run_product(a, b, out, precision)
        eager.keep(native, before, [a, b], result, decision_of((a, b, None), Held(precision, "")), queued)
    return result


functions.NATIVE.update(dict.fromkeys(_TYPES, direct))


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
        precision = precision and precision_of(precision)
        self._held = _HELD[precision, misses.checked(bits, "class of bits", misses.BITS)]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replaces what `PRODUCTS` and `REPLACED` name while a program is compiled; called by PyTorch."""
        result = exchanged(func, self._held, args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if result is NotImplemented else result

    def __enter__(self) -> Self:
        """Begins the block, in this thread."""
        if is_compiling():
            return super().__enter__()
        _override_all()
        precision = self._held.precision or PRECISION.get()
        block = _block(precision, self._held.bits, leaves_tf32(precision), CHOSEN.get())
        _BLOCK.set((block, _BLOCK.get()))
        _ENTERED.append(block)  # a thread that settles meanwhile sees it, or is seen here
        if _SETTLING.locked() or len(_ENTERED) > 1 or misses.OPEN or eager.HELD[0] != _NUMBERS.get(block):
            _settle()
        _include(True)
        return self

    def __exit__(self, *error: object) -> None:
        """Ends it."""
        if is_compiling():
            return super().__exit__(*error)
        block, around = _BLOCK.get()
        _ENTERED.remove(block)
        if _ENTERED:  # else the next block most often is such a one
            _settle()
        _BLOCK.set(around)
        return _include(around is not None)

    def __call__(self, of: Any) -> Any:
        """Makes a function, or a module, always run inside."""
        if isinstance(of, nn.Module):
            forward = functools.partial(_called, self, of.forward)  # copies of the module get one of their own
            of.forward = functools.update_wrapper(forward, of.forward)
            return of
        return super().__call__(of)


def _called(block: use, of: Any, /, *given: Any, **more: Any) -> Any:
    with block:
        return of(*given, **more)


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
