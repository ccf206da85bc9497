"""Products as operators, which autograd, compilers and exports know, and the tuned kernels behind them.

Tests replace `KERNELS_ON`, `tuned_product` and `tuned_groups`; other modules, too, read them here at each call.
"""

import contextvars
import functools
import math
import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tuner.declare.epilogue import BY_BLOCK, BY_LINE, BY_TENSOR, MIXED, RESULTS, SCALE_BLOCK
from tuner.errors import InputError
from tuner.python import functions
from tuner.torch.inductor import ACTIVATIONS, teach

#: Where tuned kernels take PyTorch's tensors; elsewhere the operator is PyTorch's own product.
KERNELS_ON = {"cuda"}
#: What calls tuned kernels.
tuned_product, tuned_groups = functions.matmul, functions.grouped
#: Dtypes of results of 8-bit numbers -> the part of an epilogue that says it.
PARTS_OF_RESULTS = {dtype: word for word, dtype in RESULTS.items()}


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


#: What collects the products that are asked for; autograd's threads see it, too.
COLLECTORS: list[set[Product]] = []


@torch.library.custom_op("tuner::product", mutates_args=())
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
    return compute(a, b, bias, precision, activation, bits=bits)


@product.register_fake
def _(a: Tensor, b: Tensor, *more: Any, **how: Any) -> Tensor:
    if "torch._inductor.fx_passes.post_grad" in sys.modules:
        teach()
    lead = a.shape[:-2] if a.shape[:-2] == b.shape[:-2] else torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.new_empty((*lead, a.shape[-2], b.shape[-1]))


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


def compute(
    a: Tensor, b: Tensor, bias: Tensor | None = None, precision: str = "", activation: str = "", bits: str = "",
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The product, by `tuner.matmul` where there are kernels for the device.

    Args:
        a: As of `product`.
        b: As of `product`.
        bias: As of `product`.
        precision: As of `product`.
        activation: As of `product`.
        bits: As of `product`.
        out: Where to put the result; a new tensor unless given.

    Returns:
        The result, of the shape that `product` tells.
    """
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
torch.ops.tuner.into = compute


def _collect(a: Tensor, b: Tensor, precision: str, *words: str) -> None:
    """Notes a product, with the words of its epilogue, for those who collect."""
    for collector in COLLECTORS:
        layout = "".join("n" if operand.is_contiguous() else "t" for operand in (a, b))
        dtype = str(b.dtype if a.dtype == torch.float8_e5m2 else a.dtype).removeprefix("torch.")
        precision = precision if dtype == "float32" else ""
        batch, shared = math.prod(b.shape[:-2]) if b.ndim > 2 else 0, math.prod(a.shape[:-2])
        layout += "-a" if shared == 1 < batch else ""
        if shared not in (1, batch or 1):
            continue  # of stacks that repeat matrices both ways there is no one problem
        sizes = a.shape[-2], b.shape[-1], a.shape[-1]
        collector.add(Product(*sizes, dtype, layout, precision, "+".join(filter(None, words)), batch))


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
    words = "" if bias is None else "bias-col", PARTS_OF_RESULTS[to]
    _collect(a, b, "", mixed, granularity(a, b, scale_a, scale_b), *words)
    return tuned_product(a, b, scale_a=scale_a, scale_b=scale_b, bias=bias, dtype=to, bits=bits)


@scaled_product.register_fake
def _(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Any, dtype: torch.dtype, bits: str
) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[1]), dtype=dtype)


def granularity(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> str:
    """What one of two scales is for: a tensor, a line or a block.

    Args:
        a: Shape (M, K).
        b: Shape (K, N).
        scale_a: As of `scaled_product`.
        scale_b: As of `scaled_product`.

    Returns:
        The part of an epilogue that says it; empty where kernels take no such scales.
    """
    (m, k), n, shapes = a.shape, b.shape[1], (tuple(scale_a.shape), tuple(scale_b.shape))
    if all(math.prod(shape) == 1 for shape in shapes):
        return BY_TENSOR
    blocks = -(-k // SCALE_BLOCK)
    if shapes == ((m, 1), (1, n)):
        return BY_LINE
    return BY_BLOCK if shapes == ((m, blocks), (blocks, -(-n // SCALE_BLOCK))) else ""


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
