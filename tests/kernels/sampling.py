"""Which kernels, problems and configs the tests of kernels try. Drawn with a fixed seed."""

import functools
import itertools
import math
import random
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gpu_models import H200

from tuner.declare.catalogue import Catalogue, builtin, computed_dtypes, from_file
from tuner.declare.folders import kernels_folder
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import IEEE, Operation, Problem
from tuner.declare.space import Config, Space, Value
from tuner.triton.language import version

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
#: A usual shape of each operation; 512 in every dim where nothing is said.
USUAL: Mapping[str, Mapping[str, int]] = {
    "gemm": {"m": 4096, "n": 4096, "k": 4096}, "gemv": {"m": 4096, "n": 4096},
    "bmm": {"batch": 256, "m": 128, "n": 64, "k": 128},
    "grouped": {"rows": 4096, "n": 512, "k": 512, "groups": 32},
    "transpose": {"m": 4096, "n": 4096}, "read": {"parts": 512, "n": 4096}, "copy": {"n": 1 << 20},
    "multiply_add": {"n": 1 << 16, "steps": 64}, "smooth": {"n": 100_000, "radius": 4},
    "distances": {"n": 4000, "axes": 16},
}  # fmt: skip
#: Kernels that hold whole matrices in shared memory, for small ones only; or that take no odd rows.
SMALL = ("whole", "cublaslt_fp8")
#: Kernels that are for some shapes only, with a problem that is usual for them.
MEANT_FOR: Mapping[str, Mapping[str, int]] = {
    "multivector": {"m": 4, "n": 4096, "k": 4096}, "thin": {"m": 16, "n": 4096, "k": 4096},
    "whole": {"batch": 8192, "m": 25, "n": 30, "k": 20}, "shallow": {"m": 4096, "n": 4096, "k": 32},
    "small": {"m": 256, "n": 256, "k": 256},
    "small_matrices": {"batch": 1000, "m": 32, "n": 32, "k": 32},
}  # fmt: skip
#: Elements of the largest problem that is run on the CPU, as the product of its dims.
LARGEST = 450_000
#: Threads of the largest launch that is run on the CPU.
MOST_THREADS = 60_000
#: What `space` last built.
_LAST: deque[tuple[Kernel, tuple[Problem, DeviceInfo], Space]] = deque(maxlen=8)


@functools.cache
def catalogues() -> tuple[Catalogue, ...]:
    """The built-in catalogue, those of the ladders' limits, and those of the examples; read once.

    Some examples are programs, which declare no kernel.
    """
    files = sorted([*(kernels_folder() / "limits").glob("*.py"), *EXAMPLES.glob("*.py")])
    return builtin(), *(from_file(path) for path in files if "\nKERNEL" in path.read_text(encoding="utf-8"))


def kernels(target: str = "") -> list[tuple[Operation, Kernel]]:
    """Every kernel for a target (for all when empty) that serves the usual precision, with its operation.

    The operation has the dtypes that the kernel computes in, and their layouts. Kernels for one architecture
    have their own tests; those of Triton are for where it is installed.
    """
    return [
        (
            replace(operation, dtypes=dtypes, layouts=operation.layouts_of.get(dtypes[0], operation.layouts)),
            kernel,
        )
        for catalogue in catalogues()
        for kernel in catalogue.kernels
        for operation in [catalogue.operation(kernel.operation)]
        for dtypes in [computed_dtypes(kernel, operation)]
        if target in ("", kernel.target)
        and kernel.serves(IEEE)
        and not kernel.scope.architecture
        and (kernel.target != "triton" or version())
    ]


def name_of(case: object) -> str:
    """Test id of what `kernels` and `every_kind` give."""
    if isinstance(case, Problem):
        return "-".join(part for part in (case.operation.name, case.dtype, case.layout) if part)
    return case.name if isinstance(case, (Kernel, Operation)) else str(case)


def usual_problem(operation: Operation, layout: str = "", dtype: str = "", kernel: str = "") -> Problem:
    """A problem of the size that people have; for a kernel that is for some shapes only, one of these."""
    shape = MEANT_FOR.get(kernel) or USUAL.get(operation.name) or dict.fromkeys(operation.dims, 512)
    return operation.problem(shape, dtype, layout)


def every_kind(target: str) -> list[tuple[Problem, Kernel]]:
    """Every kernel for a target, with the usual problem of each layout, and of each further dtype.

    The further dtypes take the layouts in turn rather than all: fewer cases find the same faults. Layouts that
    differ in what stands behind a dash take turns, too.
    """
    found = []
    for operation, kernel in kernels(target):
        first, *others = operation.dtypes
        stored: dict[str, list[str]] = {}
        for layout in operation.layouts:
            stored.setdefault(layout.partition("-")[0], []).append(layout)
        kinds = [(turns[at % len(turns)], first) for at, turns in enumerate(stored.values())]
        kinds += zip(itertools.cycle(operation.layouts[::-1]), others, strict=False)
        found += [(usual_problem(operation, layout, dtype, kernel.name), kernel) for layout, dtype in kinds]
    return found


def is_first_kind(problem: Problem) -> bool:
    """True for the operation's first dtype and layout: there kernels are tried most thoroughly."""
    operation = problem.operation
    return (problem.dtype, problem.layout) == (operation.dtypes[0], operation.layouts[0])


def space(kernel: Kernel, problem: Problem, device: DeviceInfo = H200) -> Space:
    """The legal configs. The last few are kept: a test asks several times, and then the next one does."""
    for of, asked, found in _LAST:
        if of is kernel and asked == (problem, device):
            return found
    built = Space.build(kernel.parameters, kernel.constraints, problem, device)
    _LAST.appendleft((kernel, (problem, device), built))
    return built


def right_space(kernel: Kernel, problem: Problem, device: DeviceInfo = H200) -> Space:
    """Configs that must give the right result, though they may break rules for speed: many, but not all."""
    rules = [each for each in kernel.constraints if not each.for_speed]
    return Space.build(kernel.parameters, rules, problem, device, limit=50_000)


def covering(legal: Space, seed: int = 0) -> list[Config]:
    """Legal configs in which each value that is legal at all occurs at least once: few, but of all kinds."""
    draw = random.Random(seed)
    missing = {(name, value) for config in _some(legal, draw, 2000) for name, value in config.items()}
    chosen = []
    while missing:
        best = max(_some(legal, draw, 200), key=lambda config: len(missing & set(config.items())))
        if missing & set(best.items()):
            chosen.append(best)
            missing -= set(best.items())
    return chosen


def _some(legal: Space, draw: random.Random, count: int) -> list[Config]:
    return [legal[index] for index in draw.sample(range(len(legal)), min(count, len(legal)))]


def is_legal(kernel: Kernel, problem: Problem, config: Config, device: DeviceInfo = H200) -> bool:
    """Whether the config obeys every constraint."""
    return bool(kernel.legal(problem, device, config))


def is_right(kernel: Kernel, problem: Problem, config: Config, device: DeviceInfo = H200) -> bool:
    """Whether the kernel must give the right result: rules that are for speed alone may be broken."""
    return bool(kernel.allows(problem, device, config))


def awkward_sizes(values: Mapping[str, Value]) -> list[int]:
    """1, primes, the config's numbers, one less and one more; and multiples of four near them."""
    sizes = {1, 2, 3, 7, 31, 61}
    for value in values.values():
        if isinstance(value, int) and 4 <= value <= 512:
            sizes |= {value - 1, value, value + 1, 2 * value + 3}
    sizes |= {-(-size // 4) * 4 for size in sizes}
    return sorted(sizes)


def edge_problems(
    kernel: Kernel, config: Config, like: Problem, *, count: int, seed: int = 0, device: DeviceInfo = H200
) -> list[Problem]:
    """Small problems that the config must solve: shapes drawn from edge sizes, also long and thin ones.

    Args:
        kernel: Whose constraints must hold, but for those that are for speed alone.
        config: For which they must hold.
        like: Gives operation, dtype and layout.
        count: Problems at the most.
        seed: Of the drawing.
        device: Which the constraints are asked about.
    """
    operation = like.operation
    draw = random.Random(seed)
    sizes = awkward_sizes(config)
    found: dict[Problem, None] = {}
    for _ in range(400):
        shape = {dim: draw.choice(sizes) for dim in operation.dims}
        if draw.random() < 0.2:
            shape[draw.choice(operation.dims)] = draw.choice((997, 1000))
        problem = operation.problem(shape, like.dtype, like.layout)
        if math.prod(shape.values()) > LARGEST or not is_right(kernel, problem, config, device):
            continue
        launch = kernel.launch and kernel.launch(problem, config)
        if not launch or math.prod((*launch.grid, *launch.block)) <= MOST_THREADS:
            found[problem] = None
            if len(found) == count:
                break
    return list(found)
