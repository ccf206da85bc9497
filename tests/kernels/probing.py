"""Operations made up for one test and run on the CPU: a part of a kernel that is given arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cuda_on_cpu import compile_for_cpu

from tuner.declare.kernel import Rendered
from tuner.declare.launch import Launch
from tuner.declare.problem import Operation, Problem, Scalar, Tensor, Work

Tensors = Callable[[Any], Sequence[tuple[str, tuple[int, ...], str]]]


def probe(
    name: str,
    inputs: Tensors,
    outputs: Tensors,
    dims: str = "n",
    scalars: Callable[[Any], Sequence[Scalar]] | None = None,
) -> Operation:
    """An operation with no reference; its tensors are (name, shape, dtype)."""
    more = {} if scalars is None else {"scalars": lambda p: tuple(scalars(p))}
    return Operation(
        name=name, dims=tuple(dims.split()), work=lambda p: Work(0.0, 0.0),
        reference=lambda xp, p, arrays: None,
        tensors=lambda p: (
            *(Tensor(*each) for each in inputs(p)), *(Tensor(*each, output=True) for each in outputs(p)),
        ),
        **more,
    )  # fmt: skip


def run_on_cpu(
    text: str, problem: Problem, launch: Launch, arrays: Mapping[str, Any], folder: Path, order: str = "forward"
) -> dict[str, Any]:
    """The outputs of a source's function that is named as the operation."""
    program = compile_for_cpu(Rendered(text, problem.operation.name, "cuda", launch), folder)
    return program.run(problem, launch, arrays, order)
