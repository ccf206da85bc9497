"""What Inductor is taught: to call products past the dispatcher, and to put activations into them."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

#: Activation that a kernel may apply to a product -> PyTorch's function.
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu, "gelu": functional.gelu, "silu": functional.silu,
    "gelu-tanh": functools.partial(functional.gelu, approximate="tanh"),
}  # fmt: skip


@torch.library.custom_op("tuner::activated", mutates_args=())
def activated(x: Tensor, activation: str) -> Tensor:
    """One of `ACTIVATIONS`, as compiled programs have it until it is part of the product before it."""
    return ACTIVATIONS[activation](x)


@activated.register_fake
def _(x: Tensor, activation: str) -> Tensor:
    return torch.empty_like(x)


@functools.cache
def teach() -> None:
    """Has Inductor call `torch.ops.tuner.into`, and put activations into products where kernels do."""
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
            # By a function of one argument, unlike some of PyTorch's.
            match.replace_by_example(lambda x: ACTIVATIONS[activation](x), [x])
