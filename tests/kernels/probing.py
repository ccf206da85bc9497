"""A part of a kernel that is given arrays: an operation made up for one test, and run on the CPU."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cuda_on_cpu import compile_for_cpu

from tuner.declare.kernel import Rendered
from tuner.declare.launch import Launch
from tuner.declare.problem import Operation, Scalar, Tensor, Work

Output = tuple[str, tuple[int, ...], str]


def run_on_cpu(
    text: str, name: str, arrays: Mapping[str, Any], outputs: Sequence[Output], folder: Path, launch: Launch,
    order: str = "forward", scalars: Sequence[Scalar] = (), **dims: int,
) -> dict[str, Any]:  # fmt: skip
    """Runs a function of a source; outputs are (name, shape, dtype), and scalars by default the dims."""
    tensors = [Tensor(own, array.shape, str(array.dtype)) for own, array in arrays.items()]
    tensors += [Tensor(*own, output=True) for own in outputs]
    operation = Operation(
        name=name, dims=tuple(dims), work=lambda p: Work(0.0, 0.0), reference=lambda xp, p, arrays: None,
        tensors=lambda p: tuple(tensors), **({"scalars": lambda p: tuple(scalars)} if scalars else {}),
    )  # fmt: skip
    program = compile_for_cpu(Rendered(text, name, "cuda", launch), folder)
    return program.run(operation.problem(dims), launch, arrays, order)
