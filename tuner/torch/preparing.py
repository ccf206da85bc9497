"""The products that a step of a model asks for, collected and tuned before they are needed."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tuner.python import on_miss
from tuner.torch.blocks import collected, use
from tuner.torch.operators import Product


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
    with use(precision, bits=bits), policy, collected() as products, torch.set_grad_enabled(module.training):
        result = torch.func.functional_call(module, buffers, inputs)
        leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        outputs = [leaf for leaf in leaves if leaf.requires_grad]
        if outputs and parameters:
            torch.autograd.grad(outputs, parameters, list(map(torch.ones_like, outputs)), allow_unused=True)
    ordered = sorted(products, key=lambda of: (-max(1, of.batch) * of.m * of.n * of.k, of))
    if plan:
        Path(plan).write_text("\n".join(_entry(of, bits) for of in ordered), encoding="utf-8")
    return ordered


def _entry(of: Product, bits: str) -> str:
    """A product as a problem of a plan."""
    operation, shape = ("bmm", [of.batch, of.m, of.n, of.k]) if of.batch else ("gemm", [of.m, of.n, of.k])
    lines = ["[[problems]]", f'operation = "{operation}"', f"shape = {shape}"]
    named = {"dtype": of.dtype, "layout": of.layout, "precision": of.precision, "epilogue": of.epilogue}
    named["bits"] = bits
    return "\n".join([*lines, *(f'{name} = "{value}"' for name, value in named.items() if value), ""])
