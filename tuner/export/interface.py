"""What an exported kernel takes and gives, for every shape that it holds for."""

from __future__ import annotations

import itertools
import keyword
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.launch import Launch
from tuner.declare.problem import Problem, Scalar, Tensor
from tuner.declare.space import Config
from tuner.export.symbolic import Assumption, Trace, evaluate, key_of, traced, value_of

#: What a tensor may well be called and C++ keeps for itself, or the exported source uses.
_WORDS_OF_C = {
    "auto", "char", "default", "delete", "double", "float", "int", "new", "operator", "private", "register",
    "signed", "short", "stream", "switch", "template", "this", "union", "unsigned", "using", "void",
    "block", "grid", "workspace", "shared_bytes", "allowed", "right", "timed",
}  # fmt: skip


@dataclass(frozen=True)
class Argument:
    """One array of the exported function.

    Attributes:
        tensor: As the kernel takes it; its shape is made of expressions in the dims.
        transposed: True where the kernel's array is the transpose of what the function is given: the layout
            stores it so, and in the operation's first layout it has the two dims the other way round.
    """

    tensor: Tensor
    transposed: bool

    @property
    def name(self) -> str:
        """Name of the tensor, or one near it that is no word of C++ or Python."""
        name = self.tensor.name
        return f"{name}_" if keyword.iskeyword(name) or name in _WORDS_OF_C else name

    @property
    def given(self) -> tuple[Any, ...]:
        """Shape in which the function takes it."""
        return self.tensor.shape[::-1] if self.transposed else self.tensor.shape


@dataclass(frozen=True)
class Interface:
    """What an exported kernel takes and gives; sizes are expressions in the dims.

    Attributes:
        problem: The problem that it was tuned for.
        arguments: The arrays in the kernel's order.
        scalars: The scalar arguments after them.
        launch: Geometry; None for a CPU kernel.
        assumptions: What the dims must obey.
        flops: Work of one run; a plain number where the operation's rule could not be followed.
        terms: How many products are summed into one element; a plain number likewise.
    """

    problem: Problem
    arguments: tuple[Argument, ...]
    scalars: tuple[Scalar, ...]
    launch: Launch | None
    assumptions: tuple[Assumption, ...]
    flops: Any
    terms: Any

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """The arrays that are read."""
        return tuple(argument for argument in self.arguments if not argument.tensor.output)

    @property
    def given(self) -> tuple[Scalar, ...]:
        """The scalars that the function takes from its caller."""
        return tuple(scalar for scalar in self.scalars if scalar.given)

    @property
    def outputs(self) -> tuple[Argument, ...]:
        """The arrays that are written."""
        return tuple(argument for argument in self.arguments if argument.tensor.output)

    @property
    def sources(self) -> dict[str, tuple[str, int]]:
        """Dim -> the input and the axis that tell it, where one does."""
        found: dict[str, tuple[str, int]] = {}
        for argument in self.inputs:
            for axis, size in enumerate(argument.given):
                if getattr(size, "operator", "") == "dim":
                    found.setdefault(size.operands[0], (argument.name, axis))
        return found

    @property
    def fixed(self) -> dict[str, int]:
        """Dims that must have one value."""
        conditions = [assumption.condition for assumption in self.assumptions]
        return {
            each.operands[0].operands[0]: each.operands[1]
            for each in conditions
            if each.operator == "==" and key_of(each.operands[0])[:1] == ("dim",)
            and not hasattr(each.operands[1], "operator")
        }  # fmt: skip

    def rules(self, written: Callable[[Any], str], also: str) -> list[tuple[str, str]]:
        """The assumptions as (condition, sentence), those of one sentence joined.

        Args:
            written: Writes one condition: `in_c` or `in_python`.
            also: The language's "and".
        """
        found = []
        for sentence, group in itertools.groupby(self.assumptions, lambda assumption: assumption.sentence):
            conditions = [written(assumption.condition) for assumption in group]
            nested = [f"({each})" if "or" in each or "||" in each else each for each in conditions]
            found.append((f" {also} ".join(nested if len(nested) > 1 else conditions), sentence))
        return found

    def holds_for(self, dims: Mapping[str, int]) -> bool:
        """Whether the export may be used for these dims."""
        return all(evaluate(assumption.condition, dims) for assumption in self.assumptions)


def interface_of(kernel: Kernel, problem: Problem, config: Config, device: DeviceInfo) -> Interface:
    """Follows the declarations of kernel and operation.

    Where they cannot be followed the interface is that of the problem alone: every dim has one value.
    """
    try:
        return _followed(kernel, problem, config, device)
    except Exception:
        _, trace = traced(problem)
        fixed = _fixed_dims(problem, trace)
        launch = kernel.launched(problem, config)
        plain = tuple(Argument(tensor, False) for tensor in problem.tensors)
        terms = problem.operation.terms(problem)
        return Interface(problem, plain, problem.scalars, launch, fixed, problem.work.flops, terms)


def _fixed_dims(problem: Problem, trace: Trace) -> tuple[Assumption, ...]:
    dims, trace = traced(problem)
    for _, value in dims.shape:
        int(value)
    return tuple(trace.assumptions)


def _followed(kernel: Kernel, problem: Problem, config: Config, device: DeviceInfo) -> Interface:
    dims, trace = traced(problem)
    operation = problem.operation
    for each, its in _with_fallback(kernel, config):
        for constraint in each.constraints:
            if not constraint.for_speed:
                trace.rule = constraint.sentence
                bool(constraint.rule(dims, device, its))
    trace.rule = "the launch was declared for such a shape"
    launch = kernel.launched(dims, config)
    trace.rule = "the kernel's scalar arguments hold no more"
    scalars = operation.scalars(dims)
    trace.rule = f"the tensors of {operation.name} were declared so"
    arguments = _arguments(
        operation.tensors(dims), operation.tensors(replace(dims, layout=operation.layouts[0]))
    )
    trace.rule = "the source was rendered with this value"
    for constant in operation.constants(dims, kernel.target).values():
        str(constant)
    flops, terms = _work(problem)
    return Interface(problem, arguments, scalars, launch, tuple(trace.assumptions), flops, terms)


def _with_fallback(kernel: Kernel, config: Config) -> list[tuple[Kernel, Config]]:
    """The kernel, and the plain one behind it, each with its config."""
    fallback = kernel.fallback
    return [(kernel, config), *([(fallback.kernel, Config(fallback.config(config)))] if fallback else [])]


def _arguments(stored: tuple[Tensor, ...], plainly: tuple[Tensor, ...]) -> tuple[Argument, ...]:
    """The arguments; an input that the layout stores the other way round is told from its shape."""
    found = []
    for tensor, plain in zip(stored, plainly, strict=True):
        keys = [key_of(size) for size in tensor.shape]
        others = [key_of(size) for size in plain.shape]
        turned = not tensor.output and len(keys) == 2 and keys != others and keys == others[::-1]
        found.append(Argument(tensor, turned))
    return tuple(found)


def _work(problem: Problem) -> tuple[Any, Any]:
    """Flops and terms as expressions where the declared rules depend on nothing but arithmetic."""
    dims, _ = traced(problem)
    operation = problem.operation
    other = problem.at({dim: 2 * size + 1 for dim, size in problem.shape})
    flops, terms = operation.work(dims).flops, operation.terms(dims)
    if evaluate(flops, other.dims) != other.work.flops:
        flops = value_of(problem.work.flops)
    if evaluate(terms, other.dims) != operation.terms(other):
        terms = operation.terms(problem)
    return flops, terms
