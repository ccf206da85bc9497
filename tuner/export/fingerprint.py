"""Fingerprints: a float64 reference in a few numbers, for outputs whose operation gives no C reference.

Each element of the output is added, with a sign, to one of a few sums. The sums of the reference, computed
here at the time of export, are written into the exported source, which computes its own and compares: no
element is left out. Inputs are drawn from a formula that C and NumPy compute alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tuner.declare.problem import Problem, Tensor

if TYPE_CHECKING:
    import numpy as np

#: Sums of a fingerprint.
SUMS = 16
#: Elements of all tensors together, and flops, up to which a reference is computed at export.
_MOST_ELEMENTS, _MOST_FLOPS = 2**22, 2**31


@dataclass(frozen=True)
class Fingerprint:
    """Sums of one output of one problem.

    Attributes:
        problem: Fixes the dims.
        output: Name of the tensor.
        sums: The reference's.
        allowed: How far a right output's may be off: what the tolerance allows each element, added up as
            errors of random sign are.
    """

    problem: Problem
    output: str
    sums: tuple[float, ...]
    allowed: tuple[float, ...]


def drawn(tensor: Tensor, seed: int) -> Any:
    """An input: multiples of 1/2048 in [-1, 1), or small whole numbers; the same as ``drawn`` in the source.

    Args:
        tensor: Shape and dtype.
        seed: Place of the tensor among the inputs, from 1.
    """
    import numpy as np

    mixed = _mixed(tensor, seed)
    if tensor.dtype in ("int32", "int64", "uint8"):
        small = (mixed % np.uint32(17)).astype(np.int64) - (0 if tensor.dtype == "uint8" else 8)
        return small.astype(tensor.dtype).reshape(tensor.shape)
    values = (mixed.astype(np.float64) - 2048.0) / 2048.0
    return values.astype(tensor.dtype).reshape(tensor.shape)


def _mixed(tensor: Tensor, seed: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    import math

    import numpy as np

    index = np.arange(math.prod(tensor.shape), dtype=np.uint32)
    mixed = index * np.uint32(2654435761) + np.uint32(seed * 40503)
    mixed = (mixed ^ (mixed >> np.uint32(16))) * np.uint32(0x45D9F3B)
    return (mixed ^ (mixed >> np.uint32(16))) >> np.uint32(20)


def fingerprints(problem: Problem, holds_for: Callable[[dict[str, int]], bool]) -> list[Fingerprint]:
    """Fingerprints of the outputs, at dims that are quick to compute and that the export holds for.

    Args:
        problem: The problem that was tuned; large dims are cut, once to a power of two and once to an
            odd number, so that both whole and cut tiles occur.
        holds_for: Whether the export may be used for some dims.
    """
    chosen: dict[tuple[int, ...], Problem] = {}
    for most in (10**18, 512, 509, 128, 125, 32, 29):
        dims = {dim: min(size, most) for dim, size in problem.shape}
        if holds_for(dims):
            cut = problem.at(dims)
            if _is_quick(cut):
                chosen.setdefault(tuple(dims.values()), cut)
    return [each for cut in list(chosen.values())[:2] for each in _of(cut)]


def _is_quick(problem: Problem) -> bool:
    elements = sum(tensor.bytes for tensor in problem.tensors)
    return elements <= _MOST_ELEMENTS * 8 and problem.work.flops <= _MOST_FLOPS


def _of(problem: Problem) -> list[Fingerprint]:
    import numpy as np

    arrays = {tensor.name: drawn(tensor, place + 1) for place, tensor in enumerate(problem.inputs)}
    reference = problem.operation.reference(np, problem, arrays)
    found = []
    for tensor in problem.outputs:
        whole = reference[tensor.name] if isinstance(reference, dict) else reference
        flat = np.asarray(whole, dtype=np.float64).ravel()
        each = problem.tolerance * (np.sqrt(np.mean(flat**2)) + np.abs(flat))
        place = np.arange(flat.size) % SUMS
        sign = 1.0 - 2.0 * (_mixed(tensor, 0) % np.uint32(2))
        sums = np.bincount(place, flat * sign, SUMS)
        allowed = np.sqrt(np.bincount(place, each**2, SUMS))
        found.append(Fingerprint(problem, tensor.name, tuple(sums.tolist()), tuple(allowed.tolist())))
    return found
