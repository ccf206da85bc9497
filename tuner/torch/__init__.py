"""PyTorch: the products of a model by tuned kernels, in training, too, and under `torch.compile`.

::

    import tuner.torch

    with tuner.torch.use(precision="emulated"):  # FP32 on tensor cores, as exact as cuBLAS's SGEMM
        train()

PyTorch is needed only by those who import this module.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C import _dispatch_key_parse, _dispatch_tls_set_dispatch_key_included
from torch.autograd import forward_ad
from torch.fx.experimental.symbolic_shapes import has_static_value
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from tuner.declare.epilogue import BY_BLOCK, BY_LINE, BY_TENSOR, MIXED, RESULTS, SCALE_BLOCK, Epilogue
from tuner.errors import InputError
from tuner.lookup.demand import DEMAND
from tuner.python import matmul as tuned_product
from tuner.python import misses, on_miss
from tuner.python.arrays import Operand, family_of
from tuner.python.decisions import Decision, decision_for
from tuner.python.functions import grouped as tuned_groups
from tuner.python.requests import PRECISION, precision_of, request_for
from tuner.torch import eager

__all__ = ["Product", "grouped", "prepare", "product", "scaled_product", "use"]

#: Where tuned kernels take PyTorch's tensors; elsewhere the operator is PyTorch's own product.
KERNELS_ON = {"cuda"}
#: Dtypes of products that kernels compute.
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
#: Activation that a kernel may apply to a product -> PyTorch's function.
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu, "gelu": functional.gelu, "silu": functional.silu,
    "gelu-tanh": functools.partial(functional.gelu, approximate="tanh"),
}  # fmt: skip


class Product(NamedTuple):
    """A product that a model asked for.

    Attributes:
        m: Rows of the result.
        n: Its columns.
        k: Terms of each sum.
        dtype: ``float32``.
        layout: ``n`` or ``t`` for each operand: stored as used, or its transpose.
        precision: ``ieee`` or ``emulated``; empty for the surrounding one.
        epilogue: ``bias-col`` for a product with a bias, and the activation behind it, joined by ``+``.
        batch: Number of such products, for two stacks; 0 for two matrices.
    """

    m: int
    n: int
    k: int
    dtype: str
    layout: str
    precision: str
    epilogue: str = ""
    batch: int = 0


class Held(NamedTuple):
    """What holds for all products inside of `use`: see there."""

    precision: str
    bits: str


#: One for each content: compiled programs know it by its identity.
_held = functools.cache(Held)
#: Types of tensors that kernels take.
_TYPES = {Tensor, nn.Parameter}
#: Two operands and maybe a bias.
Operands = tuple[Tensor, Tensor, Tensor | None]
#: PyTorch, as `tuner.python` knows it.
PYTORCH: Any = family_of(torch.empty(0))
#: Dtypes of results of 8-bit numbers -> the part of an epilogue that says it.
_RESULTS = {dtype: word for word, dtype in RESULTS.items()}
#: What collects the products that are asked for; autograd's threads see it, too.
_COLLECTORS: list[set[Product]] = []


_TAKES = '(Tensor a, Tensor b, Tensor? bias, str precision, str activation="", str fusable="", str bits="")'


@torch.library.custom_op("tuner::product", mutates_args=(), schema=f"{_TAKES} -> Tensor")
def product(
    a: Tensor, b: Tensor, bias: Tensor | None, precision: str, activation: str = "", fusable: str = "",
    bits: str = "",
) -> Tensor:  # fmt: skip
    """``activation(a @ b + bias)`` as an operator of PyTorch; compilers and `torch.export` know it.

    Args:
        a: Shape (M, K), or (..., M, K) for a stack.
        b: Shape (K, N), or (..., K, N) for a stack, which broadcasts with `a`; of the same dtype and device.
        bias: Shape (N,), or None, as it is for stacks.
        precision: As of `tuner.matmul`; it counts for float32 alone.
        activation: One of `ACTIVATIONS`; empty for none, as it is where there are gradients.
        fusable: Those that kernels apply faster, by spaces; Inductor makes the next one the activation.
        bits: As of `tuner.matmul`.

    Returns:
        Shape (M, N), or (..., M, N), row-major.

    Raises:
        InputError: An activation, and an operand requires gradients.
    """
    return _computed(a, b, bias, precision, activation, bits=bits)


@product.register_fake
def _(a: Tensor, b: Tensor, *more: Any, **how: Any) -> Tensor:
    if "torch._inductor.fx_passes.post_grad" in sys.modules:
        _teach_inductor()
    lead = a.shape[:-2] if a.shape[:-2] == b.shape[:-2] else torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.new_empty((*lead, a.shape[-2], b.shape[-1]))


@torch.library.custom_op("tuner::activated", mutates_args=())
def activated(x: Tensor, activation: str) -> Tensor:
    """One of `ACTIVATIONS`, as compiled programs have it until it is part of the product before it."""
    return ACTIVATIONS[activation](x)


@activated.register_fake
def _(x: Tensor, activation: str) -> Tensor:
    return torch.empty_like(x)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, _, precision, activation, _, bits = inputs
    if activation:
        raise InputError(f"product: {activation} is for products without gradients; call it behind the product")
    ctx.save_for_backward(a, b)
    # Autograd's threads know nothing of the blocks around the forward pass: a policy on misses, for one.
    surroundings = contextvars.copy_context()
    ctx.product = functools.partial(surroundings.run, product, bias=None, precision=precision, bits=bits)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (a, b), (for_a, for_b, for_bias, *_) = ctx.saved_tensors, ctx.needs_input_grad
    of_a = of_b = None
    if for_a:
        of_a = ctx.product(grad, b.mT).sum_to_size(a.shape)
    if for_b and b.stride(-2) == 1 and b.stride(-1) != 1:  # a weight's view: the gradient lies as it does
        of_b = ctx.product(grad.mT, a).mT.sum_to_size(b.shape)
    elif for_b:
        of_b = ctx.product(a.mT, grad).sum_to_size(b.shape)
    return of_a, of_b, grad.sum(0) if for_bias else None, None, None, None, None


product.register_autograd(_backward, setup_context=_setup)


def _computed(
    a: Tensor, b: Tensor, bias: Tensor | None = None, precision: str = "", activation: str = "", bits: str = "",
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The product, by `tuner.matmul` where there are kernels for the device."""
    _collect(a, b, precision, "" if bias is None else "bias-col", activation)
    if a.device.type not in KERNELS_ON:
        plain = torch.matmul(a, b) if bias is None else torch.addmm(bias, a, b)
        result = ACTIVATIONS[activation](plain) if activation else plain
        return result if out is None else out.copy_(result)
    if torch.is_grad_enabled():
        a, b, bias = a.detach(), b.detach(), bias if bias is None else bias.detach()
    finish: dict[str, Any] = {} if bias is None else {"bias": bias}
    if activation:
        finish["activation"] = activation
    precision = precision if a.dtype == torch.float32 else ""
    return tuned_product(a, b, out, precision=precision, bits=bits, **finish)


#: The product as programs that Inductor has compiled, or has kept from another process, find it: the dispatcher
#: takes longer than some products.
torch.ops.tuner.into = _computed


def _collect(a: Tensor, b: Tensor, precision: str, *words: str) -> None:
    """Notes a product, with the words of its epilogue, for those who collect."""
    for collector in _COLLECTORS:
        layout = "".join("n" if operand.is_contiguous() else "t" for operand in (a, b))
        dtype = str(b.dtype if a.dtype == torch.float8_e5m2 else a.dtype).removeprefix("torch.")
        precision = precision if dtype == "float32" else ""
        batch, shared = math.prod(b.shape[:-2]) if b.ndim > 2 else 0, math.prod(a.shape[:-2])
        layout += "-a" if shared == 1 < batch else ""
        if shared not in (1, batch or 1):
            continue  # of stacks that repeat matrices both ways there is no one problem
        sizes = a.shape[-2], b.shape[-1], a.shape[-1]
        collector.add(Product(*sizes, dtype, layout, precision, "+".join(filter(None, words)), batch))


def _multiplied(a: Tensor, b: Tensor, bias: Tensor | None, held: Held, out: Tensor | None = None) -> Any:
    """``a @ b + bias`` for a matrix b and any leading dims of a, or stacks; else NotImplemented."""
    if min(a.ndim, b.ndim) < 2 or a.shape[-1] != b.shape[-2]:
        return NotImplemented
    leads = zip(a.shape[-3::-1], b.shape[-3::-1], strict=False) if b.ndim > 2 < a.ndim else ()
    unlike = any(size != other and 1 not in (size, other) for size, other in leads)
    if unlike or (bias is not None and (b.ndim > 2 or bias.shape != b.shape[-1:])):
        return NotImplemented
    tensors = [a, b] if bias is None else [a, b, bias]
    compiling, with_gradients = torch.compiler.is_compiling(), _has_gradients(tensors)
    if out is None and torch.is_autocast_enabled(a.device.type):
        dtype, wide = torch.get_autocast_dtype(a.device.type), torch.float64
        tensors = [one.to(dtype) if one.is_floating_point() and one.dtype != wide else one for one in tensors]
    if not all(_is_plain(tensor, tensors[0]) for tensor in tensors) or 0 in (*a.shape, *b.shape):
        return NotImplemented
    if out is not None:
        fits = not (compiling or _has_gradients([*tensors, out])) and _is_plain(out, a)
        if not fits or out.shape != (*a.shape[:-1], b.shape[-1]):
            return NotImplemented
    left, right, *finish = tensors
    folded = right.ndim == 2 < left.ndim
    rows = left.reshape(-1, left.shape[-1]) if folded else left
    fusable: dict[str, str] = {}
    if compiling and not with_gradients and _is_static(rows, right):
        kernels = _kernels(
            tuple(rows.shape), tuple(rows.stride()), tuple(right.shape), tuple(right.stride()),
            str(left.dtype), str(left.device), held, bias is not None,
        )  # fmt: skip
        if not kernels:
            return NotImplemented
        fusable = {"fusable": kernels}
    # The operator is what autograd and compilers know; without them it is only in the way.
    compute: Any = product if compiling or with_gradients else functools.partial(_computed, out=out)
    result = compute(rows, right, finish[0] if finish else None, held.precision, bits=held.bits, **fusable)
    return result.view(*left.shape[:-1], right.shape[-1]) if folded else result


def _decided(tensors: Any, held: Held) -> Decision | None:
    """What records say of a product of tensors, whose leading dims are rows where they may be."""
    a, b, bias = tensors
    rows = a.reshape(-1, a.shape[-1]) if b.ndim == 2 < a.ndim else a
    named = {"a": rows, "b": b, "bias": bias}.items()
    return _decision({name: PYTORCH.operand(one) for name, one in named if one is not None}, held)


def _decision(operands: Mapping[str, Operand], held: Held, activation: str = "") -> Decision | None:
    """What records say of a product of operands, named as `tuner.matmul` names them."""
    precision = held.precision if operands["a"].dtype == "float32" else ""
    epilogue = Epilogue(bias="bias-col" if "bias" in operands else "", activation=activation)
    return decision_for(request_for("matmul", operands, precision, epilogue=epilogue, bits=held.bits))


def _is_plain(tensor: Tensor, like: Tensor) -> bool:
    alike = tensor.dtype == like.dtype and tensor.device == like.device
    return alike and tensor.dtype in DTYPES and tensor.layout == torch.strided


def _has_gradients(tensors: Sequence[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _is_static(*tensors: Tensor) -> bool:
    """Whether a program is compiled for these very sizes, and not exported."""
    sizes = [size for tensor in tensors for size in tensor.shape]
    # `is_exporting` is True in all that Dynamo compiles, up to PyTorch 2.11.
    return torch.compiler.is_dynamo_compiling() and all(map(has_static_value, sizes))


@torch.compiler.assume_constant_result
def _kernels(
    a_shape: tuple[int, ...], a_strides: tuple[int, ...], b_shape: tuple[int, ...], b_strides: tuple[int, ...],
    dtype: str, device: str, held: Held, bias: bool,
) -> str:  # fmt: skip
    """What kernels compute of a product while a program is compiled.

    Args:
        a_shape: Of A.
        a_strides: Elements from one to the next, for each axis.
        b_shape: Of B.
        b_strides: Likewise.
        dtype: ``torch.float32``.
        device: ``cuda:0``.
        held: What holds inside.
        bias: Whether one is added.

    Returns:
        ``product``, and each activation behind it for which a kernel is the answer; empty for the library.
    """
    if device.partition(":")[0] not in KERNELS_ON:
        return ""
    kind, size = dtype.removeprefix("torch."), getattr(torch, dtype.removeprefix("torch.")).itemsize
    shaped = {"a": (a_shape, a_strides), "b": (b_shape, b_strides)}
    if bias:
        shaped["bias"] = (b_shape[-1:], (1,))
    operands = {
        name: Operand("PyTorch", shape, tuple(step * size for step in strides), kind, size, device)
        for name, (shape, strides) in shaped.items()
    }

    def decided(activation: str = "") -> bool:
        decision = _decision(operands, held, activation)
        if decision is not None and decision.in_graphs is False:
            return False
        if decision is None or decision.kernel is not None:
            return decision is not None
        if decision.is_miss and not activation:
            DEMAND.count(decision.problem, decision.device, decision.answer).hits[0] += 1
        return decision.is_miss and not activation and misses.chosen().how == misses.MEASURE

    return " ".join(["product", *filter(decided, ACTIVATIONS)]) if decided() else ""


@functools.cache
def _teach_inductor() -> None:
    """Has Inductor call `_computed`, and put activations into the products before them where kernels do."""
    from torch._inductor.fx_passes.post_grad import pass_patterns
    from torch._inductor.ir import ExternKernelOut, FixedLayout, TensorBox
    from torch._inductor.lowering import fallback_handler, register_lowering
    from torch._inductor.pattern_matcher import MULTIPLE, Arg, CallFunction, register_graph_pattern
    from torch._inductor.select_algorithm import realize_inputs
    from torch._inductor.virtualized import V

    aten, ours = torch.ops.aten, torch.ops.tuner
    views = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)

    dispatched = fallback_handler(ours.product.default, add_to_fallback_set=False)

    @register_lowering(ours.product.default, type_promotion_kind=None)
    def lowered(
        a: Any, b: Any, bias: Any, precision: str, activation: str = "", fusable: str = "", bits: str = ""
    ) -> Any:
        lead, size = a.get_size()[:-2], [*a.get_size()[:-1], b.get_size()[-1]]
        if V.graph.cpp_wrapper or lead != b.get_size()[:-2]:
            return dispatched(a, b, bias, precision, activation, fusable, bits)
        given = realize_inputs(a, b, *([] if bias is None else [bias]))
        layout = FixedLayout(a.get_device(), a.get_dtype(), size)
        how = {"precision": precision, "activation": activation, "bits": bits}
        call = ExternKernelOut(layout, given, kwargs=how, python_kernel_name="torch.ops.tuner.into")
        return TensorBox.create(call)

    @register_graph_pattern(
        CallFunction(ours.activated.default, Arg(), Arg(), _users=MULTIPLE), pass_dict=pass_patterns[0]
    )
    def fuse(match: Any, x: Any, activation: str) -> None:
        before = x
        while before.target in views and len(before.users) == 1:
            before = before.args[0]
        fusable = (*before.args[5:], "")[0] if before.target is ours.product.default else ""
        if activation in fusable.split() and len(before.users) == 1:
            before.args = (*before.args[:4], activation, *before.args[5:])
            match.output_node().replace_all_uses_with(x)
            match.erase_nodes()
        else:
            match.replace_by_example(ACTIVATIONS[activation], [x])


def _activation(
    activation: str, held: Held, x: Tensor, inplace: bool = False, approximate: str = "none"
) -> Any:
    """An activation where it may become part of a product: in compiled programs without gradients."""
    kind = x.device.type in KERNELS_ON and x.dtype in DTYPES
    if inplace or not (kind and torch.compiler.is_dynamo_compiling()) or _has_gradients([x]):
        return NotImplemented
    return activated(x, "gelu-tanh" if approximate == "tanh" else activation)


def _linear(given: Tensor, weight: Tensor, bias: Tensor | None = None) -> Operands | None:
    return (given, weight.t(), bias) if weight.ndim == 2 else None


def _matmul(given: Tensor, other: Tensor, ndim: int = 0, **more: Any) -> Operands | None:
    fits = not ndim or (given.ndim == other.ndim == ndim and given.shape[:-2] == other.shape[:-2])
    return (given, other, None) if fits and not more else None


def _addmm(bias: Tensor, a: Tensor, b: Tensor, **more: Any) -> Operands | None:
    return None if more else (a, b, bias)


@torch.library.custom_op("tuner::scaled_product", mutates_args=())
def scaled_product(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None, dtype: torch.dtype, bits: str
) -> Tensor:
    """``a @ b`` of 8-bit numbers (e4m3; one may be e5m2) with their scales, as an operator; see `tuner.matmul`.

    Args:
        a: Shape (M, K).
        b: Shape (K, N).
        scale_a: Float32, shape (1,), (M, 1) or (M, ceil(K / 128)).
        scale_b: Likewise (1,), (1, N) or (ceil(K / 128), ceil(N / 128)).
        bias: Shape (N,), of the result's dtype; or None.
        dtype: Of the result.
        bits: As of `tuner.matmul`.
    """
    to = str(dtype).removeprefix("torch.")
    mixed = next((word for word, of in zip(MIXED, (a, b), strict=True) if of.dtype == torch.float8_e5m2), "")
    words = "" if bias is None else "bias-col", _RESULTS[to]
    _collect(a, b, "", mixed, _scale(a, b, scale_a, scale_b), *words)
    how: dict[str, Any] = {"dtype": to, "bits": bits}
    result: Tensor = tuned_product(a, b, scale_a=scale_a, scale_b=scale_b, bias=bias, **how)
    return result


@scaled_product.register_fake
def _(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Any, dtype: torch.dtype, bits: str
) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[1]), dtype=dtype)


def _scale(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> str:
    """What two scales are for; empty where kernels take no such scales."""
    (m, k), n, shapes = a.shape, b.shape[1], (tuple(scale_a.shape), tuple(scale_b.shape))
    if all(math.prod(shape) == 1 for shape in shapes):
        return BY_TENSOR
    blocks = -(-k // SCALE_BLOCK)
    if shapes == ((m, 1), (1, n)):
        return BY_LINE
    return BY_BLOCK if shapes == ((m, blocks), (blocks, -(-n // SCALE_BLOCK))) else ""


def _scaled_mm(
    held: Held, a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    scale_result: Tensor | None = None, out_dtype: torch.dtype | None = None, use_fast_accum: bool = False,
    **more: Any,
) -> Any:  # fmt: skip
    """PyTorch's product of 8-bit numbers; `use_fast_accum` allows less exact sums, which no kernel needs.

    Dynamo (2.13) lets nothing see it: compiled programs call `scaled_product`.
    """
    dtypes = {a.dtype, b.dtype}
    fits = torch.float8_e4m3fn in dtypes and dtypes <= {torch.float8_e4m3fn, torch.float8_e5m2} and not more
    fits = fits and a.device.type in KERNELS_ON and scale_result is None
    fits = fits and str(out_dtype).removeprefix("torch.") in _RESULTS
    fits = fits and scale_a.dtype == scale_b.dtype == torch.float32
    fits = fits and (bias is None or bias.dtype == out_dtype)
    if not fits or 0 in (*a.shape, *b.shape) or not _scale(a, b, scale_a, scale_b):
        return NotImplemented
    return scaled_product(a, b, scale_a, scale_b, bias, out_dtype, held.bits)


@torch.library.custom_op("tuner::grouped", mutates_args=())
def grouped(a: Tensor, b: Tensor, offsets: Tensor) -> Tensor:
    """`tuner.grouped` as an operator of PyTorch.

    Args:
        a: Shape (rows, K).
        b: Shape (groups, K, N).
        offsets: Int32, shape (groups,): where groups of rows end.
    """
    return tuned_groups(a.detach(), b.detach(), offsets)


@grouped.register_fake
def _(a: Tensor, b: Tensor, offsets: Tensor) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[2]))


def _setup_groups(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)
    ctx.grouped = functools.partial(contextvars.copy_context().run, grouped)


def _backward_of_groups(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """That of B has groups of terms in place of rows, for which there is PyTorch's own product."""
    (a, b, offsets), (for_a, for_b, _) = ctx.saved_tensors, ctx.needs_input_grad
    grad = grad.contiguous()
    of_b = torch._grouped_mm(a.mT, grad, offs=offsets) if for_b else None
    return ctx.grouped(grad, b.mT, offsets) if for_a else None, of_b, None


grouped.register_autograd(_backward_of_groups, setup_context=_setup_groups)


def _grouped_mm(
    held: Held, a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:  # fmt: skip
    """PyTorch's product of rows in groups; others of its products are left to it.

    Dynamo (2.13) lets nothing see it: compiled programs call `grouped`.
    """
    fits = (a.ndim, b.ndim) == (2, 3) and a.dtype == b.dtype and a.dtype in DTYPES and not held.bits
    fits = fits and a.device.type in KERNELS_ON and bias is None and out_dtype in (None, a.dtype)
    if not fits or offs is None or offs.dtype != torch.int32 or 0 in (*a.shape, *b.shape):
        return NotImplemented
    return (grouped if _has_gradients([a, b]) else tuned_groups)(a, b, offs)


#: Products of PyTorch -> what takes their operands apart; None for what is left to PyTorch.
PRODUCTS: Mapping[Any, Callable[..., Operands | None]] = {
    functional.linear: _linear,
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__), _matmul),
    **dict.fromkeys((torch.mm, Tensor.mm), functools.partial(_matmul, ndim=2)),
    **dict.fromkeys((torch.bmm, Tensor.bmm), functools.partial(_matmul, ndim=3)),
    **dict.fromkeys((torch.addmm, Tensor.addmm), _addmm),
}
#: Other functions -> what they become inside `use`.
REPLACED: Mapping[Any, Callable[..., Any]] = {
    torch._scaled_mm: _scaled_mm,
    torch._grouped_mm: _grouped_mm,
    **dict.fromkeys((functional.relu, torch.relu, Tensor.relu), functools.partial(_activation, "relu")),
    functional.silu: functools.partial(_activation, "silu"),
    functional.gelu: lambda held, x, approximate="none": _activation("gelu", held, x, approximate=approximate),
}


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
_LIBRARIES = {
    name: torch.library.Library(*name) for name in (("_", "IMPL"), ("aten", "IMPL"), ("tuner", "FRAGMENT"))
}
_LIBRARIES["_", "IMPL"].fallback(torch.library.fallthrough_kernel, KEY)


def _settle() -> None:
    """Says what holds in all blocks, if it is the same in all, and products are not collected."""
    holding = {*_ENTERED, *((held, policy) for held, _ in _ENTERED for policy in misses.OPEN)}
    number = _NUMBERS.setdefault(next(iter(holding)), len(_NUMBERS) + 1) if len(holding) == 1 else 0
    eager.HELD[0] = 0 if _COLLECTORS else number


def _override(operator: str, plain: Callable[..., Any], native: Any) -> None:
    """Has an operator of PyTorch, called by the function `plain`, replaced in threads inside of `use`."""

    def run(*given: Any, **more: Any) -> Any:
        _include(False)
        try:
            # A thread of autograd has the key of the one that asks, and no block: what all blocks hold, holds.
            block, entered = _BLOCK.get(), {held for held, _ in _ENTERED}
            held = block[0][0] if block else entered.pop() if len(entered) == 1 else None
            # Tensors of other types are those of a program that is compiled; of tangents kernels know nothing.
            foreign = type(given[0]) not in _TYPES or forward_ad._current_level >= 0
            elsewhere = given[0].device.type not in KERNELS_ON and not _COLLECTORS
            if held is None or foreign or elsewhere:
                return plain(*given, **more)
            before = eager.HELD[0], misses.EPOCH[0] + misses.TURNS[0]
            _settle()
            with eager.noted() as queued:
                replaced = _replaced(plain, held, given, more)
                result = plain(*given, **more) if replaced is NotImplemented else replaced
            if native is not None and plain in PRODUCTS and native.tuner_asks():
                decision = None if replaced is NotImplemented else _decided(PRODUCTS[plain](*given), held)
                tensors = [one for one in given if one is not None]
                eager.keep(native, before, tensors, result, decision, queued)
            return result
        finally:
            _include(True)

    if native is None or plain not in PRODUCTS:
        _LIBRARIES["aten", "IMPL"].impl(operator, run, KEY)
        return
    name, _, overload = operator.partition(".")
    schema = getattr(getattr(torch.ops.aten, name), overload or "default")._schema
    ours = f"eager_{operator.replace('.', '_')}"
    _LIBRARIES["tuner", "FRAGMENT"].define(ours + str(schema).partition(operator)[2])
    _LIBRARIES["tuner", "FRAGMENT"].impl(ours, run, "CompositeImplicitAutograd")


@functools.cache
def _override_all() -> None:
    """Replaces PyTorch's operators in threads inside of `use`, once."""
    device = next(iter(KERNELS_ON))
    native = eager.library(device) if device != "cuda" or torch.cuda.is_available() else None
    for operator in ("linear", "matmul", "mm", "bmm", "addmm", "_scaled_mm", "_grouped_mm"):
        _override(operator, getattr(torch, operator, functional.linear), native)
    for operator in ("mm", "bmm", "addmm"):  # which compiled programs call
        _override(f"{operator}.out", getattr(torch, operator), native)


def _replaced(plain: Any, held: Held, given: Sequence[Any], more: Mapping[str, Any]) -> Any:
    """What an operator becomes in eager mode; NotImplemented for what is left to PyTorch."""
    tensors = [one for one in (*given, *more.values()) if isinstance(one, Tensor)]
    odd = any(type(one) not in _TYPES or one.is_nested or torch._is_zerotensor(one) for one in tensors)
    return (
        NotImplemented
        if odd or torch._C._are_functorch_transforms_active()
        else _exchanged(plain, held, given, **more)
    )


def _exchanged(func: Any, held: Held, given: Sequence[Any], /, out: Any = None, **more: Any) -> Any:
    """What `PRODUCTS` or `REPLACED` have for a function of PyTorch, else NotImplemented."""
    if func in PRODUCTS:
        operands = PRODUCTS[func](*given, **more)
        return NotImplemented if operands is None else _multiplied(*operands, held, out)
    return REPLACED[func](held, *given, **more) if func in REPLACED and out is None else NotImplemented


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
        result = _exchanged(func, self._held, args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if result is NotImplemented else result

    def __enter__(self) -> use:
        """Begins the block, in this thread."""
        if torch.compiler.is_compiling():
            return super().__enter__()
        _override_all()
        block = _held(self._held.precision or PRECISION.get(), self._held.bits), misses.CHOSEN.get()
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
def _collected() -> Iterator[set[Product]]:
    products: set[Product] = set()
    _COLLECTORS.append(products)
    _settle()
    try:
        yield products
    finally:
        _COLLECTORS.remove(products)
        _settle()


def prepare(
    module: nn.Module, *inputs: Any, precision: str = "", seconds: float = 2.0, plan: str | Path = "",
    bits: str = "",
) -> list[Product]:  # fmt: skip
    """Runs one step of a module, and tunes the products that it asks for, those of its gradients included.

    Parameters, buffers and gradients stay as they are. Gradients are asked for if the module is in training.

    Args:
        module: The model.
        inputs: What it is called with.
        precision: As of `use`.
        seconds: Seconds of timing at the most for each product without an answer.
        plan: A file to write as a plan of `tuner nightly`; nothing is timed then.
        bits: As of `use`.

    Returns:
        The products, the one with the most work first.
    """
    policy = on_miss("library") if plan else on_miss("measure", seconds=seconds, wait=True)
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with use(precision, bits=bits), policy, _collected() as collected, torch.set_grad_enabled(module.training):
        result = torch.func.functional_call(module, buffers, inputs)
        leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        outputs = [leaf for leaf in leaves if leaf.requires_grad]
        if outputs and parameters:
            torch.autograd.grad(outputs, parameters, list(map(torch.ones_like, outputs)), allow_unused=True)
    products = sorted(collected, key=lambda of: (-max(1, of.batch) * of.m * of.n * of.k, of))
    if plan:
        Path(plan).write_text("\n".join(_entry(of, bits) for of in products), encoding="utf-8")
    return products


def _entry(of: Product, bits: str) -> str:
    """A product as a problem of a plan."""
    operation, shape = ("bmm", [of.batch, of.m, of.n, of.k]) if of.batch else ("gemm", [of.m, of.n, of.k])
    lines = ["[[problems]]", f'operation = "{operation}"', f"shape = {shape}"]
    named = {"dtype": of.dtype, "layout": of.layout, "precision": of.precision, "epilogue": of.epilogue}
    named["bits"] = bits
    return "\n".join([*lines, *(f'{name} = "{value}"' for name, value in named.items() if value), ""])
