"""What PyTorch's products, and some of its other functions, become inside of `tuner.torch.use`."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import has_static_value
from torch.nn import functional

from tuner.declare.epilogue import Epilogue
from tuner.declare.problem import EMULATED
from tuner.lookup.demand import DEMAND
from tuner.python import misses
from tuner.python.arrays import Operand, family_of
from tuner.python.decisions import Decision, decision_for
from tuner.python.requests import PRECISION, request_for
from tuner.torch import operators
from tuner.torch.inductor import ACTIVATIONS, activated

#: Dtypes of products that kernels compute.
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
#: Two operands and maybe a bias.
Operands = tuple[Tensor, Tensor, Tensor | None]
#: Shape, and elements from one to the next, for each axis.
Strided = tuple[tuple[int, ...], tuple[int, ...]]
#: PyTorch, as `tuner.python` knows it.
PYTORCH: Any = family_of(torch.empty(0))


class Held(NamedTuple):
    """What holds for all products inside of `use`: see there.

    Attributes:
        precision: Of float32; empty for that of the surroundings.
        bits: ``library`` or empty.
        tf32: Of `leaves_tf32`, where a block was entered.
    """

    precision: str
    bits: str
    tf32: bool = False


@torch.compiler.assume_constant_result
def leaves_tf32(precision: str) -> bool:
    """Whether products in float32 are left to PyTorch, which may compute them in TF32, as no kernel does.

    Args:
        precision: What was asked for; empty for that of the surroundings.
    """
    # What `torch.backends.cuda.matmul.fp32_precision` reads, in a sixth of the time: each block asks.
    may = torch._C._get_fp32_precision_getter("cuda", "matmul") == "tf32"
    return may and (precision or PRECISION.get()) != EMULATED


def exchanged(func: Any, held: Held, given: Sequence[Any], /, out: Any = None, **more: Any) -> Any:
    """What `PRODUCTS` or `REPLACED` have for a function of PyTorch.

    Args:
        func: The function.
        held: What holds inside.
        given: Its positional arguments.
        out: Where to put the result; a new tensor unless given.
        more: Its other arguments.

    Returns:
        The function's result; NotImplemented for what is left to PyTorch.
    """
    if func in PRODUCTS:
        operands = PRODUCTS[func](*given, **more)
        return NotImplemented if operands is None else _multiplied(*operands, held, out)
    return REPLACED[func](held, *given, **more) if func in REPLACED and out is None else NotImplemented


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
    if left.dtype == torch.float32 and (held.tf32 or (compiling and leaves_tf32(held.precision))):
        return NotImplemented
    folded = right.ndim == 2 < left.ndim
    rows = left.reshape(-1, left.shape[-1]) if folded else left
    fusable: dict[str, str] = {}
    if compiling and not with_gradients and _is_static(rows, right):
        strided = [(tuple(one.shape), tuple(one.stride())) for one in (rows, right)]
        kernels = _kernels(*strided, str(left.dtype), str(left.device), held, bias is not None)
        if not kernels:
            return NotImplemented
        fusable = {"fusable": kernels}
    # The operator is what autograd and compilers know; without them it is only in the way.
    call = operators.product if compiling or with_gradients else functools.partial(operators.compute, out=out)
    result = call(rows, right, finish[0] if finish else None, held.precision, bits=held.bits, **fusable)
    return result.view(*left.shape[:-1], right.shape[-1]) if folded else result


def decision_of(tensors: Any, held: Held) -> Decision | None:
    """What records say of a product of tensors.

    Args:
        tensors: A, B and the bias or None; leading dims of A are rows where they may be.
        held: What holds inside.

    Returns:
        None where no problem is known for them.
    """
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
def _kernels(a: Strided, b: Strided, dtype: str, device: str, held: Held, bias: bool) -> str:
    """What kernels compute of a product while a program is compiled.

    Args:
        a: How A lies.
        b: How B lies.
        dtype: ``torch.float32``.
        device: ``cuda:0``.
        held: What holds inside.
        bias: Whether one is added.

    Returns:
        ``product``, and each activation behind it for which a kernel is the answer; empty for the library.
    """
    if device.partition(":")[0] not in operators.KERNELS_ON:
        return ""
    kind, size = dtype.removeprefix("torch."), getattr(torch, dtype.removeprefix("torch.")).itemsize
    strided = {"a": a, "b": b}
    if bias:
        strided["bias"] = (b[0][-1:], (1,))
    operands = {
        name: Operand("PyTorch", shape, tuple(step * size for step in strides), kind, size, device)
        for name, (shape, strides) in strided.items()
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


def _activation(
    activation: str, held: Held, x: Tensor, inplace: bool = False, approximate: str = "none"
) -> Any:
    """An activation where it may become part of a product: in compiled programs without gradients."""
    kind = x.device.type in operators.KERNELS_ON and x.dtype in DTYPES
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
    fits = fits and a.device.type in operators.KERNELS_ON and scale_result is None
    fits = fits and str(out_dtype).removeprefix("torch.") in operators.PARTS_OF_RESULTS
    fits = fits and scale_a.dtype == scale_b.dtype == torch.float32
    fits = fits and (bias is None or bias.dtype == out_dtype)
    if not fits or 0 in (*a.shape, *b.shape) or not operators.granularity(a, b, scale_a, scale_b):
        return NotImplemented
    return operators.scaled_product(a, b, scale_a, scale_b, bias, out_dtype, held.bits)


def _grouped_mm(
    held: Held, a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:  # fmt: skip
    """PyTorch's product of rows in groups; others of its products are left to it.

    Dynamo (2.13) lets nothing see it: compiled programs call `grouped`.
    """
    fits = (a.ndim, b.ndim) == (2, 3) and a.dtype == b.dtype and a.dtype in DTYPES and not held.bits
    fits = fits and a.device.type in operators.KERNELS_ON and bias is None and out_dtype in (None, a.dtype)
    if not fits or offs is None or offs.dtype != torch.int32 or 0 in (*a.shape, *b.shape):
        return NotImplemented
    return (operators.grouped if _has_gradients([a, b]) else operators.tuned_groups)(a, b, offs)


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
