"""Further inputs for kernels that promise the library's error for all: spread widely, positive, not finite.

They are held against the library at the same inputs, by an element's error over the sum of its terms' sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy

from tuner.devices.protocol import Device, Run
from tuner.workers.workload import Workload

#: An error so many times the library's is within the promise, and so is one of a unit in the last place.
FACTOR, LEAST = 2.0, 2.0**-23
#: Changes normal numbers in place, of all inputs; or of each input in turn.
Change = Callable[[Any, Any], None]
Changes = Change | tuple[Change, ...]


def _uniform(xp: Any, x: Any) -> None:
    x[...] = xp.abs(x) % 1


def _positive(xp: Any, x: Any) -> None:
    xp.abs(x, out=x)


def _lognormal(xp: Any, x: Any) -> None:
    sign = 1 - 2 * (x.view("uint32") & 1).astype(x.dtype)
    xp.exp(2 * x, out=x)
    x *= sign


def _outliers(size: float) -> Change:
    def change(xp: Any, x: Any) -> None:
        x.reshape(-1)[::97] *= x.dtype.type(size)

    return change


def _times(factor: float) -> Change:
    def change(xp: Any, x: Any) -> None:
        x *= x.dtype.type(factor)

    return change


def _subnormal(xp: Any, x: Any) -> None:
    """Numbers below the least normal one, by their bits: a GPU's libraries make zeros of them."""
    cells = x.view("uint32")
    cells &= 0x807FFFFF


def _empty_lines(xp: Any, x: Any) -> None:
    x[::3] = 0
    x[..., ::5] = 0


def _integers(xp: Any, x: Any) -> None:
    x *= 16
    xp.rint(x, out=x)


def _one(value: float) -> Change:
    def change(xp: Any, x: Any) -> None:
        x.reshape(-1)[x.size // 2 : x.size // 2 + 1] = value

    return change


#: In words -> how normal inputs become such.
KINDS: Mapping[str, Changes] = {
    "uniform from 0 to 1": _uniform,
    "positive": _positive,
    "lognormal with sigma 2": _lognormal,
    "normal with outliers of 1e4": _outliers(1e4),
    "normal with outliers of 1e8": _outliers(1e8),
    "normal, whole and small": _integers,
    "normal with rows and columns of zeros": _empty_lines,
    "normal, and so large that their products are near the end of the range": _times(2.0**56),
    "normal, and so small that their products are subnormal": _times(2.0**-68),
    "subnormal against large": (_subnormal, _times(2.0**30)),
    "normal with an infinity": _one(math.inf),
    "normal with a NaN": _one(math.nan),
}
#: Those of problems whose float64 references take long, and from how many flops on.
FEW_KINDS = (
    "uniform from 0 to 1",
    "lognormal with sigma 2",
    "normal with outliers of 1e4",
    "normal with a NaN",
)
LONG_FLOPS = 2e12


def broken_promise(device: Device, workload: Workload, run: Run) -> str:
    """What a kernel makes of inputs of several kinds, if that is worse than it may be; empty if it is not.

    The inputs are placed anew afterwards. Where a product takes long they are of a few kinds only.

    Args:
        device: Where.
        workload: The arrays; float32.
        run: The kernel on them.

    Raises:
        LaunchFailed: A run failed.
    """
    library = device.library(workload)
    if library is None:
        return ""
    try:
        for kind in KINDS if workload.problem.work.flops < LONG_FLOPS else FEW_KINDS:
            workload.begin(workload.first)
            changed(device.xp, KINDS[kind], workload.inputs.arrays)
            wrong = compared(device, workload, run, library)
            if wrong:
                return f"inputs that are {kind}: {wrong}"
    finally:
        workload.begin(workload.first)
    return ""


def changed(xp: Any, change: Changes, arrays: Mapping[str, Any]) -> None:
    """Changes the inputs to those of a kind, in place."""
    for number, array in enumerate(arrays.values()):
        own = change[number % len(change)] if isinstance(change, tuple) else change
        own(xp, array)


def compared(device: Device, workload: Workload, run: Run, library: Run) -> str:
    """What a kernel makes of the present inputs, if that is worse than it may be; empty if it is not."""
    xp = device.xp
    with numpy.errstate(all="ignore"):
        exact, sizes = _sums(xp, workload)
        run()
        device.synchronize()
        ours = {name: _judged(xp, workload.arrays[name], *each) for name, each in _both(exact, sizes)}
        workload.poison()
        library()
        device.synchronize()
        theirs = {name: _judged(xp, workload.arrays[name], *each) for name, each in _both(exact, sizes)}
    for name, (error, is_pattern) in ours.items():
        if not is_pattern:
            return f"{name} is not finite where the result is, or finite where it is not"
        allowed = max(FACTOR * theirs[name][0], LEAST)
        if not error <= allowed:
            return (
                f"an element of {name} is off by {error:.3g} of its terms' sizes; {FACTOR:g} times the "
                f"library's largest error, {theirs[name][0]:.3g}, is allowed"
            )
    return ""


def _sums(xp: Any, workload: Workload) -> tuple[dict[str, Any], dict[str, Any]]:
    """Outputs in float64, and the same of the inputs' sizes."""
    problem, inputs = workload.problem, workload.inputs.arrays
    found = []
    wide = {name: _widened(xp, array) for name, array in inputs.items()}
    for arrays in (wide, {name: xp.abs(array) for name, array in wide.items()}):
        told = problem.operation.reference(xp, problem, arrays)
        found.append(dict(told) if isinstance(told, Mapping) else {problem.outputs[0].name: told})
    return found[0], found[1]


def _widened(xp: Any, x: Any) -> Any:
    """In float64, subnormal numbers too: a GPU's libraries take them for zeros."""
    cells = x.view("uint32")
    if not bool(((cells & 0x7FFFFFFF) - xp.uint32(1) < 0x7FFFFF).any()):  # zero becomes the largest number
        return x.astype(xp.float64)
    fraction = (cells & 0x7FFFFF).astype(xp.float64) * 2.0**-149
    sign = 1.0 - 2.0 * (cells >> 31)
    return xp.where((cells & 0x7F800000) == 0, sign * fraction, x.astype(xp.float64))


def _both(exact: dict[str, Any], sizes: dict[str, Any]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for name, value in exact.items():
        yield name, (value, sizes[name])


def _judged(xp: Any, output: Any, exact: Any, size: Any) -> tuple[float, bool]:
    """Largest error over the terms' sizes, and whether what is finite is where it should be."""
    finite = xp.isfinite(exact)
    is_pattern = bool((xp.isfinite(output) == finite).all())
    off = xp.abs(_widened(xp, output) - exact) / xp.where(size > 0, size, 1.0)
    return float(xp.where(finite, off, 0.0).max()), is_pattern
