"""What a study needs before its first trial: a name, room for the arrays, spaces, its past, where to start."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from tuner.errors import DeclarationError, InputError, NothingFound, TunerError
from tuner.hardware import DeviceInfo
from tuner.kernel import Kernel
from tuner.problem import Problem
from tuner.record import Champion, ProblemKey, Record, Role
from tuner.space import Config, Space
from tuner.store import Store

#: Champions of other shapes to start from.
NEIGHBOURS = 5


def key_of(problem: Problem) -> ProblemKey:
    """Names a problem in the store."""
    return ProblemKey(problem.operation.name, problem.shape, problem.dtype, problem.layout)


def study_name(problem: ProblemKey, device: DeviceInfo, regime: str, kernels: Iterable[Kernel]) -> str:
    """Names a study: other kernels, or other sources of them, make another study."""
    sources = sorted(f"{kernel.name} {kernel.source_hash}" for kernel in kernels)
    digest = hashlib.sha256("\n".join(sources).encode()).hexdigest()[:8]
    return f"{problem} on {device.name}, {regime}, kernels {digest}"


def check_regime(regime: str, kind: str) -> None:
    """Refuses a regime that a kind of device is not timed in.

    Raises:
        InputError: It is one for GPUs only.
    """
    if kind == "cpu" and regime not in ("cold", "hot"):
        raise InputError(f"a CPU is timed cold or hot, got regime {regime!r}; choose one of them")


def check_fits(problem: Problem, free_bytes: int, device: DeviceInfo) -> None:
    """Refuses a problem that is declared wrongly, or larger than the memory that is free.

    Raises:
        DeclarationError: What its operation declares fails for this problem.
        InputError: It does not fit, or a dim is larger than kernels can take.
    """
    try:
        needed, work = problem.memory_bytes, problem.work
        _ = problem.scalars, problem.tolerance, float(work.flops), float(work.bytes)
    except TunerError:
        raise
    except Exception as error:
        raise DeclarationError(
            f"tensors, work, scalars and terms of operation {problem.operation.name!r} must hold for every "
            f"problem; for {problem} they fail with {type(error).__name__}: {error}; correct them"
        ) from error
    if needed > free_bytes:
        raise InputError(
            f"a problem's arrays and float64 reference must fit into free memory ({free_bytes / 2**30:.3g} GiB "
            f"on {device.name}), {problem} needs {needed / 2**30:.3g} GiB; choose smaller dims"
        )


def legal_spaces(kernels: Iterable[Kernel], problem: Problem, device: DeviceInfo) -> dict[str, Space]:
    """Kernel -> its legal configs, for the kernels that have any.

    Raises:
        NothingFound: None has; the message says how many configs each constraint rejects.
    """
    spaces = {
        kernel.name: Space.build(kernel.parameters, kernel.constraints, problem, device) for kernel in kernels
    }
    legal = {name: space for name, space in spaces.items() if len(space)}
    if legal:
        return legal
    lines = [f"no config is legal for {problem} on {device.name}:"]
    for name, space in spaces.items():
        lines.append(f"  {name}: {space.raw_size} configs")
        lines += [f"    {count} break: {sentence}" for sentence, count in space.rejected if count]
    raise NothingFound("\n".join([*lines, "relax a constraint, or choose another problem or kernel"]))


def past_trials(
    store: Store, problem: ProblemKey, device: DeviceInfo, regime: str, versions: Mapping[str, str]
) -> list[Record]:
    """Trials of a problem that were measured with this driver and compiler, whatever their kernel."""
    return [
        record
        for record in store.records(problem=problem, device=device, role=Role.TRIAL)
        if record.regime == regime
        and all(record.versions.get(name) == versions.get(name) for name in ("compiler", "driver"))
    ]


def starting_points(
    store: Store, kernels: Iterable[Kernel], problem: ProblemKey, device: DeviceInfo
) -> list[tuple[str, Config]]:
    """Configs to try first: declared defaults, then champions of the nearest shapes on such a device.

    Shapes are near when their dims are, by ratio. What is not legal for the problem is left out by the
    search.
    """
    starts = [(kernel.name, config) for kernel in kernels if (config := kernel.default_config())]

    def distance(champion: Champion) -> float:
        theirs = champion.record.problem.dims
        return sum(abs(value - theirs[name]) / max(value, theirs[name]) for name, value in problem.shape)

    known = store.champions(operation=problem.operation, device=device)
    nearest = sorted(known, key=distance)[:NEIGHBOURS]
    return [*starts, *((each.record.kernel, Config(each.record.config)) for each in nearest)]
