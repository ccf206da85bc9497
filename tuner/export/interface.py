"""What an exported kernel takes, gives and launches, for every shape that it holds for."""

import itertools
import keyword
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.launch import Launch, Step
from tuner.declare.problem import Problem, Scalar, Tensor
from tuner.declare.space import Config
from tuner.devices.detect import language_of
from tuner.export.symbolic import Assumption, Expression, evaluate, in_python, traced, value_of

#: What a tensor may well be called and C++ keeps for itself, or the exported source uses.
_WORDS_OF_C = {
    "auto", "char", "default", "delete", "double", "float", "int", "new", "operator", "private", "register",
    "signed", "short", "stream", "switch", "template", "this", "union", "unsigned", "using", "void",
    "block", "grid", "workspace", "shared_bytes", "right", "timed", "status",
}  # fmt: skip


@dataclass(frozen=True)
class Argument:
    """One array of the exported function.

    Attributes:
        tensor: As the kernel takes it; its shape is made of expressions in the dims.
        transposed: True where the kernel's array is the transpose of what the function is given: the layout
            stores it so, and in the operation's first layout it has the two dims the other way round.
        padded: Shape of the larger array that the kernel takes in its place; empty where it takes it as it is.
    """

    tensor: Tensor
    transposed: bool = False
    padded: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        """Name of the tensor, or one near it that is no word of C++ or Python."""
        name = self.tensor.name
        return f"{name}_" if keyword.iskeyword(name) or name in _WORDS_OF_C else name

    @property
    def given(self) -> tuple[Any, ...]:
        """Shape in which the function takes it."""
        return self.tensor.shape[::-1] if self.transposed else self.tensor.shape

    @property
    def stored(self) -> tuple[Any, ...]:
        """Shape in which the kernel takes it."""
        return self.padded or self.tensor.shape


@dataclass(frozen=True)
class Interface:
    """What an exported kernel takes, gives and launches; sizes are expressions in the dims.

    Every format is made from it: the statements of a source and of a module, and the rules in JSON.

    Attributes:
        problem: The problem that it was tuned for.
        entry: The kernel's function.
        arguments: The arrays in the kernel's order.
        scalars: The scalar arguments after them.
        launch: Geometry; None for a CPU kernel.
        assumptions: What the dims must obey.
        flops: Work of one run; a plain number where the operation's rule could not be followed.
        terms: How many products are summed into one element; a plain number likewise.
    """

    problem: Problem
    entry: str
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
    def outputs(self) -> tuple[Argument, ...]:
        """The arrays that are written."""
        return tuple(argument for argument in self.arguments if argument.tensor.output)

    @property
    def given(self) -> tuple[Scalar, ...]:
        """The scalars that the function takes from its caller."""
        return tuple(scalar for scalar in self.scalars if scalar.given)

    def argument(self, tensor: str) -> Argument:
        """The array of that name."""
        return next(argument for argument in self.arguments if argument.tensor.name == tensor)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The launches of a run, in order; of a CPU kernel one without geometry."""
        launch = self.launch or Launch((), ())
        names = [argument.tensor.name for argument in self.arguments]
        names += [*(scalar.name for scalar in self.scalars), *(["workspace"] if launch.workspace else [])]
        single = Step(self.entry, launch.grid, launch.block, launch.shared_bytes, tuple(names))
        return launch.steps or (single,)

    def texts(
        self, array: Callable[[Argument], str], scalar: Callable[[Scalar], str], region: Callable[[Any], str]
    ) -> dict[str, str]:
        """What steps' arguments name, as it is written in a language.

        Args:
            array: Writes an array.
            scalar: Writes a scalar.
            region: Writes a part of the workspace, by its first byte.
        """
        workspace = self.launch.workspace if self.launch else None
        texts = {argument.tensor.name: array(argument) for argument in self.arguments}
        texts |= {number.name: scalar(number) for number in self.scalars}
        return texts | {name: region(first) for name, first in (workspace.regions if workspace else ())}

    @property
    def sources(self) -> dict[str, tuple[str, int]]:
        """Dim -> the input and the axis that tell it, where one does."""
        sources: dict[str, tuple[str, int]] = {}
        for argument in self.inputs:
            for axis, size in enumerate(argument.given):
                if isinstance(size, Expression) and size.text.isidentifier():
                    sources.setdefault(size.text, (argument.name, axis))
        return sources

    @property
    def fixed(self) -> dict[str, int]:
        """Dims that must have one value."""
        sides = [assumption.condition.text.partition(" == ") for assumption in self.assumptions]
        return {dim: int(size) for dim, _, size in sides if dim.isidentifier() and size.isdecimal()}

    def rules(self, written: Callable[[Any], str], also: str) -> list[tuple[str, str]]:
        """The assumptions as (condition, sentence), those of one sentence joined.

        Args:
            written: Writes one condition: `in_c` or `in_python`.
            also: The language's "and".
        """
        rules = []
        for sentence, group in itertools.groupby(self.assumptions, lambda assumption: assumption.sentence):
            texts = [written(assumption.condition) for assumption in group]
            nested = [f"({text})" if "or" in text or "||" in text else text for text in texts]
            rules.append((f" {also} ".join(nested if len(nested) > 1 else texts), sentence))
        return rules


def interface_of(kernel: Kernel, problem: Problem, config: Config, device: DeviceInfo) -> Interface:
    """Follows the declarations of kernel and operation.

    Where they cannot be followed, or machine code is for the problem's numbers, the interface is that of the
    problem alone: every dim has one value.
    """
    if not language_of(kernel.target).by_sizes:
        with suppress(Exception):
            return _followed(kernel, problem, config, device)
    dims, trace = traced(problem)
    for _, value in dims.shape:
        int(value)
    launch, terms = kernel.launched(problem, config), problem.operation.terms(problem)
    arrays = _arguments(problem.tensors, problem.tensors, launch)
    return Interface(
        problem, kernel.source.entry, arrays, problem.scalars, launch, tuple(trace.assumptions),
        problem.work.flops, terms,
    )  # fmt: skip


def _followed(kernel: Kernel, problem: Problem, config: Config, device: DeviceInfo) -> Interface:
    dims, trace = traced(problem)
    operation, fallback = problem.operation, kernel.scope.fallback
    plain = [(fallback.kernel, Config(fallback.config(config)))] if fallback else []
    for part, its_config in [(kernel, config), *plain]:
        for constraint in part.constraints:
            if not constraint.for_speed:
                trace.rule = constraint.sentence
                bool(constraint.rule(dims, device, its_config))
    trace.rule = "the launch was declared for such a shape"
    launch = kernel.launched(dims, config)
    trace.rule = "the kernel's scalar arguments hold no more"
    scalars = operation.scalars(dims)
    trace.rule = f"the tensors of {operation.name} were declared so"
    tensors = operation.tensors(replace(dims, layout=operation.layouts[0]))
    arguments = _arguments(operation.tensors(dims), tensors, launch)
    trace.rule = "the source was rendered with this value"
    for constant in operation.constants(dims, kernel.target).values():
        str(constant)
    flops, terms = _work(problem)
    return Interface(
        problem, kernel.source.entry, arguments, scalars, launch, tuple(trace.assumptions), flops, terms
    )


def _arguments(
    stored: tuple[Tensor, ...], plainly: tuple[Tensor, ...], launch: Launch | None
) -> tuple[Argument, ...]:
    """The arguments; an input that the layout stores the other way round is told from its shape."""
    padded = {padding.tensor: padding.shape for padding in (launch.padded if launch else ())}
    arguments = []
    for tensor, plain in zip(stored, plainly, strict=True):
        shape, others = (list(map(in_python, array.shape)) for array in (tensor, plain))
        transposed = not tensor.output and len(shape) == 2 and shape != others and shape == others[::-1]
        arguments.append(Argument(tensor, transposed, padded.get(tensor.name, ())))
    return tuple(arguments)


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


#: For readers of the JSON.
_ABOUT = (
    "a run as tuner.Launch describes it (docs/api.md); sizes are numbers, or expressions in the dims, in which "
    "ceil_div(a, b) is the smallest whole number not below a / b; arrays are dense and row-major, at multiples "
    "of 16 bytes"
)


def launch_json(face: Interface, tuned: Launch, architecture: str) -> dict[str, Any]:
    """How to launch: rules in the dims, in Python's notation, and what they give for the tuned problem.

    Args:
        face: What is launched.
        tuned: The launch for the tuned problem.
        architecture: That the binary is for.
    """
    arrays = [
        {
            "name": array.name, "kind": "pointer", "dtype": array.tensor.dtype, "written": array.tensor.output,
            "shape": _written(array.tensor.shape),
        }
        for array in face.arguments
    ]  # fmt: skip
    scalars = [
        {
            "name": scalar.name, "kind": "value", "dtype": scalar.dtype,
            "value": None if scalar.given else _written(scalar.value),
        }
        for scalar in face.scalars
    ]  # fmt: skip
    must_hold = [assumption.condition.text for assumption in face.assumptions]
    return {
        "entry": face.entry,
        "architecture": architecture,
        "rules": {"about": _ABOUT, **_written(face.launch), "must_hold": must_hold},
        "launch": asdict(tuned),
        "arguments": [*arrays, *scalars],
    }


def _written(part: Any) -> Any:
    """A part of a launch as plain data, what follows from the dims as text."""
    if isinstance(part, Expression):
        return part.text
    if is_dataclass(part):
        values = {field.name: _written(getattr(part, field.name)) for field in fields(part)}
        return {name: value for name, value in values.items() if value not in ([], None, "")}
    return list(map(_written, part)) if isinstance(part, tuple) else part
