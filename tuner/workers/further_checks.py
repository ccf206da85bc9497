"""What finalists are checked on beside the problem itself: other kinds of inputs, and small awkward shapes.

A kernel that promises the library's error for all inputs is held against the library at numbers that are spread
widely, positive or not finite, by an element's error over the sum of its terms' sizes.
"""

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem, Tensor
from tuner.declare.space import Config
from tuner.devices.comparing import fingerprint
from tuner.devices.protocol import Device, Run
from tuner.errors import InputError
from tuner.results.measurement import VARIES
from tuner.workers.inputs import FIXED_KINDS, PERIOD, bits, fixed_cells, infinity_of
from tuner.workers.workload import HUGE, NAN, Workload, outputs_of

#: An error so many times the library's is within the promise, and so is one of a unit in the last place.
FACTOR, LEAST = 2.0, 2.0**-23
#: Makes other numbers of normal ones, for all inputs; or one such change for each input in turn.
Change = Callable[[Any, Any], Any]
Changes = Change | tuple[Change, ...]


def _outliers(size: float) -> Change:
    def change(xp: Any, x: Any) -> Any:
        x.reshape(-1)[::97] *= size
        return x

    return change


def _one(value: float) -> Change:
    def change(xp: Any, x: Any) -> Any:
        x.reshape(-1)[x.size // 2 : x.size // 2 + 1] = value
        return x

    return change


def _lognormal(xp: Any, x: Any) -> Any:
    return xp.exp(2 * x) * (1 - 2 * (x.view("uint32") & 1).astype(x.dtype))


def _subnormal(xp: Any, x: Any) -> Any:
    """Numbers below the least normal one, by their bits: a GPU's libraries make zeros of them."""
    return (x.view("uint32") & 0x807FFFFF).view(x.dtype)


def _empty_lines(xp: Any, x: Any) -> Any:
    x[::3] = x[..., ::5] = 0
    return x


#: In words -> how normal inputs become such.
KINDS: Mapping[str, Changes] = {
    "all a third": lambda xp, x: xp.full_like(x, 1 / 3),  # every sum is rounded the same way
    "uniform from 0 to 1": lambda xp, x: xp.abs(x) % 1,
    "positive": lambda xp, x: xp.abs(x),
    "lognormal with sigma 2": _lognormal,
    "normal with outliers of 1e4": _outliers(1e4),
    "normal with outliers of 1e8": _outliers(1e8),
    "normal, whole and small": lambda xp, x: xp.rint(16 * x),
    "normal with rows and columns of zeros": _empty_lines,
    "normal, and so large that their products are near the end of the range": lambda xp, x: x * 2.0**56,
    "normal, and so small that their products are subnormal": lambda xp, x: x * 2.0**-68,
    "subnormal against large": (_subnormal, lambda xp, x: x * 2.0**30),
    "normal with an infinity": _one(math.inf),
    "normal with a NaN": _one(math.nan),
}
#: Those of problems whose float64 references take long, and from how many flops on.
FEW_KINDS = (
    "all a third", "uniform from 0 to 1", "lognormal with sigma 2", "normal with outliers of 1e4",
    "normal with a NaN",
)  # fmt: skip
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
        array[...] = own(xp, array)


def compared(device: Device, workload: Workload, run: Run, library: Run) -> str:
    """What a kernel makes of the present inputs, if that is worse than it may be; empty if it is not."""
    xp, problem = device.xp, workload.problem
    wide = {name: _widened(xp, array) for name, array in workload.inputs.arrays.items()}
    with numpy.errstate(all="ignore"):
        exact = outputs_of(xp, problem, wide)
        sizes = outputs_of(xp, problem, {name: xp.abs(array) for name, array in wide.items()})
        ours, theirs = (
            {name: _judged(xp, output, exact[name], sizes[name]) for name, output in outputs.items()}
            for outputs in (_computed(device, workload, of) for of in (run, library))
        )
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


def _computed(device: Device, workload: Workload, run: Run) -> Mapping[str, Any]:
    """The outputs of a run over poison."""
    workload.poison()
    run()
    device.synchronize()
    return {tensor.name: workload.arrays[tensor.name] for tensor in workload.problem.outputs}


def _widened(xp: Any, x: Any) -> Any:
    """In float64, subnormal numbers too: a GPU's libraries take them for zeros."""
    cells = x.view("uint32")
    if not bool(((cells & 0x7FFFFFFF) - xp.uint32(1) < 0x7FFFFF).any()):  # zero becomes the largest number
        return x.astype(xp.float64)
    fraction = (cells & 0x7FFFFF).astype(xp.float64) * 2.0**-149
    sign = 1.0 - 2.0 * (cells >> 31)
    return xp.where((cells & 0x7F800000) == 0, sign * fraction, x.astype(xp.float64))


def _judged(xp: Any, output: Any, exact: Any, size: Any) -> tuple[float, bool]:
    """Largest error over the terms' sizes, and whether what is finite is where it should be."""
    finite = xp.isfinite(exact)
    is_pattern = bool((xp.isfinite(output) == finite).all())
    off = xp.abs(_widened(xp, output) - exact) / xp.where(size > 0, size, 1.0)
    return float(xp.where(finite, off, 0.0).max()), is_pattern


def class_of_bits(device: Device, workload: Workload, run: Run) -> str:
    """The class of a run's bits: a hash of its outputs at fixed inputs of several kinds.

    Runs with equal hashes are taken for the same function, bit by bit. The inputs are placed anew afterwards.

    Args:
        device: Where.
        workload: The arrays.
        run: The kernel, or the library, on them.

    Returns:
        `VARIES` if two runs on the same inputs differ; empty for a user's operation that draws inputs itself:
        others may be out of range.

    Raises:
        LaunchFailed: A run failed.
    """
    operation = workload.problem.operation
    if operation.origin is not None and (operation.draws is not None or operation.fixed):
        return ""

    def outputs(kind: str, poison: str) -> tuple[int, ...]:
        workload.begin_fixed(kind, poison)
        run()
        device.synchronize()
        return workload.fingerprints()

    # Kernels of a user's own operation need not bear numbers that are not finite.
    kinds = FIXED_KINDS if operation.origin is None else FIXED_KINDS[:1]
    try:
        with numpy.errstate(all="ignore"):
            found = [outputs(kind, NAN) for kind in kinds]
            if outputs(kinds[0], HUGE) != found[0]:
                return VARIES
    finally:
        workload.begin(workload.first)
    return hashlib.sha256(repr(found).encode()).hexdigest()[:12]


@numpy.errstate(all="ignore")
def class_of_rows(device: Device, workload: Workload, run: Run, dim: str, count: int) -> str:
    """The class of a run's rows: a hash of the outputs for `count` fixed rows of the inputs.

    It does not depend on how many rows a run computes. Fewer than `count` are computed in several runs; of
    more, the others are the same rows again, at other places. Their numbers are nearly normal; then every other
    row's are of the other kind.

    Args:
        device: Where.
        workload: The arrays; their contents are lost.
        run: The kernel on them.
        dim: The dim that counts rows; every output has it.
        count: How many rows are hashed; a prime puts a row at every place of a tile.

    Returns:
        `VARIES` if a row has other bits at another place.

    Raises:
        LaunchFailed: A run failed.
    """
    xp, problem, size = device.xp, workload.problem, workload.problem.dims[dim]
    kinds = FIXED_KINDS if problem.operation.origin is None else FIXED_KINDS[:1]
    cells = {name: bits(array).reshape(array.shape) for name, array in workload.arrays.items()}
    rows = {name: xp.moveaxis(cells[name], axis, 0) for name, axis in problem.axes(dim).items()}
    kept = {own: xp.empty((count, *rows[own.name].shape[1:]), rows[own.name].dtype) for own in problem.outputs}

    def table(number: int, tensor: Tensor, among: Sequence[str]) -> Any:
        shape = (count, *rows[tensor.name].shape[1:])
        places = xp.arange(math.prod(shape)) % PERIOD
        own = [fixed_cells(xp, kind, tensor.dtype, number)[places].reshape(shape) for kind in among]
        for wide in own[1:]:
            own[0][1::2] = wide[: count // 2]
        return own[0]

    def hashed(tensor: Tensor, values: Any) -> int:
        return fingerprint(xp, xp.ascontiguousarray(values).reshape(-1), infinity_of(tensor.dtype))

    found: list[int] = []
    # A kernel that takes another way if any of its inputs is wide gives rows other bits among wide ones.
    for among, kind in dict.fromkeys([(kinds[:1], kinds[0]), *((kinds, kind) for kind in kinds)]):
        workload.begin_fixed(kind)
        own_rows = ((number, own) for number, own in enumerate(problem.inputs) if own.name in rows)
        tables = {own.name: table(number, own, among) for number, own in own_rows}
        for first in range(0, count, size):
            turns = (first + xp.arange(size)) % count
            for name, values in tables.items():
                rows[name][...] = values[turns]
            run()
            device.synchronize()
            for own, values in kept.items():
                values[first : first + size] = rows[own.name][: count - first]
        if any(hashed(own, rows[own.name]) != hashed(own, values[turns]) for own, values in kept.items()):
            return VARIES
        found += [hashed(own, values) for own, values in kept.items()]
    return hashlib.sha256(repr(found).encode()).hexdigest()[:12]


#: Largest number of awkward shapes for one config; larger ones cost more than they reveal.
CASES, LIMIT_BYTES = 10, 256 << 20
#: Config values above this are not taken for tile sizes, so that arrays stay small.
LARGEST_TILE = 512
PRIMES = (37, 61, 29, 43, 53)
#: A long dim beside short ones.
LONG = 1031


def edge_problems(problem: Problem, kernel: Kernel, config: Config, device: DeviceInfo) -> tuple[Problem, ...]:
    """Small problems of the same operation, dtype and layout that the config must solve, too.

    A library refuses what it does not solve, so it has none.

    Args:
        problem: Supplies operation, dtype and layout.
        kernel: The kernel to check.
        config: Its config.
        device: Constraints may depend on it.
    """
    cases: dict[Problem, None] = {}
    if kernel.is_library:
        return ()
    for sizes in _sizes(len(problem.shape), _tile(config)):
        with contextlib.suppress(InputError, ArithmeticError):
            case = problem.at({name: size for (name, _), size in zip(problem.shape, sizes, strict=True)})
            if kernel.allows(case, device, config) and case.memory_bytes <= LIMIT_BYTES:
                cases[case] = None
    return tuple(cases)[:CASES]


def _tile(config: Config) -> int:
    sizes = [value for value in config.values() if isinstance(value, int) and 1 < value <= LARGEST_TILE]
    return max(sizes, default=16)


def _sizes(dims: int, tile: int) -> Iterator[tuple[int, ...]]:
    primes = (PRIMES * dims)[:dims]
    yield from ((1,) * dims, primes)
    yield from ((size,) * dims for size in (tile - 1, tile, tile + 1))
    for long in range(dims):
        yield from (tuple(LONG if dim == long else short for dim in range(dims)) for short in (1, 3))
    # Shapes for which vector accesses are legal: multiples of 4 that no tile divides.
    yield tuple(4 * prime for prime in primes)
    yield tuple(tile + 4 * (dim + 1) for dim in range(dims))
