"""Prepares a study: its name, memory for the arrays, spaces, earlier records."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Space
from tuner.devices.detect import DetectedDevice, kind_of
from tuner.errors import DeclarationError, InputError, NothingFound, TunerError
from tuner.results.measurement import Measurement, Outcome
from tuner.results.objectives import TIME
from tuner.results.record import OBJECTIVES_OF_STUDY, ProblemKey, Record, Role
from tuner.store import Store
from tuner.study.progress import Request


def key_of(problem: Problem) -> ProblemKey:
    """Names a problem in the store."""
    return ProblemKey.of(problem)


def study_name(
    problem: ProblemKey,
    device: DeviceInfo,
    regime: str,
    kernels: Iterable[Kernel],
    objectives: Sequence[str] = TIME,
    error_limit: float | None = None,
) -> str:
    """Names a study; other kernels, sources, objectives or error limits make another study."""
    sources = sorted(f"{kernel.name} {kernel.source_hash}" for kernel in kernels)
    digest = hashlib.sha256("\n".join(sources).encode()).hexdigest()[:8]
    aims = f"{OBJECTIVES_OF_STUDY}{' '.join(objectives)}" if len(objectives) > 1 else ""
    limit = "" if error_limit is None else f", error limit {error_limit:g}"
    return f"{problem} on {device.name}, {regime}, kernels {digest}{aims}{limit}"


def check_request(request: Request) -> None:
    """Refuses invalid requests before a device is opened.

    Raises:
        DeclarationError: A kernel's source lacks the function to call.
        InputError: The regime or an objective does not suit the device.
    """
    check_regime(request.regime, request.found[0].target)
    check_power(request.objectives, request.found[0])
    for kernel in request.kernels:
        kernel.check_entry()


def check_regime(regime: str, kind: str) -> None:
    """Refuses a regime in which a kind of device cannot be timed.

    Raises:
        InputError: The regime is for GPUs only.
    """
    if regime not in kind_of(kind).regimes:
        raise InputError(f"a CPU is timed cold or hot, got regime {regime!r}; choose one of them")


def check_power(objectives: Sequence[str], found: DetectedDevice) -> None:
    """Refuses energy as an objective if it is known beforehand that the device reports no power.

    Raises:
        InputError: The device is a CPU whose counters cannot be read.
    """
    if "energy" in objectives:
        trouble = kind_of(found.spec).power_trouble()
        if trouble:
            raise _no_power(found.info, trouble)


def check_energy(objectives: Sequence[str], device: DeviceInfo, measurement: Measurement) -> None:
    """Refuses energy as an objective if a measurement shows that the device reports no power.

    Raises:
        InputError: The measurement has no energy.
    """
    measured = measurement.outcome is Outcome.MEASURED and measurement.samples_s
    if "energy" in objectives and measured and "energy_j" not in measurement.circumstances:
        raise _no_power(device, "its driver reports none (NVML, nvmlDeviceGetPowerUsage)")


def _no_power(device: DeviceInfo, why: str) -> InputError:
    return InputError(
        f"the objective energy needs a device that reports its power, {device.name} does not: {why}; "
        "choose --objective time or time,error"
    )


def check_fits(problem: Problem, free_bytes: int, device: DeviceInfo) -> None:
    """Refuses a problem whose declaration fails, or that exceeds free memory.

    Raises:
        DeclarationError: What its operation declares fails for this problem.
        InputError: It does not fit, or a dim is too large for kernels.
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
    """Returns kernel -> its legal configs, for the kernels that have any.

    Raises:
        NothingFound: No kernel has any; the message gives the number of configs that each constraint rejects.
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


def past_records(
    store: Store,
    problem: ProblemKey,
    device: DeviceInfo,
    regime: str,
    versions: Mapping[str, str],
    role: Role = Role.TRIAL,
) -> list[Record]:
    """Returns records of a problem measured with this driver and compiler, of any kernel."""
    return [
        record
        for record in store.records(problem=problem, device=device, role=role)
        if record.regime == regime
        and all(record.versions.get(name) == versions.get(name) for name in ("compiler", "driver"))
    ]
