"""What a study is asked to do: made from the words of the command line, Python and plans, and checked."""

import math
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from tuner.declare.catalogue import Catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Space
from tuner.devices.detect import DetectedDevice, find_all, kind_of
from tuner.devices.settings import setting
from tuner.errors import InputError, NothingFound
from tuner.lookup.asking import default_database
from tuner.results.measurement import Measurement, Outcome
from tuner.results.objectives import TIME, limit_for, read_bits, read_error_limit, read_objectives


@dataclass(frozen=True)
class StudyRequest:
    """What a study is asked to do.

    Attributes:
        problem: The problem.
        kernels: The kernels that compete.
        found: One device, or several of one kind that share the trials.
        regime: How times are taken.
        seconds: Wall time in seconds; None for no limit.
        trials: Total number of trials, including earlier runs; None for no limit.
        seed: Seed of the search.
        sampler: Name of the search strategy.
        objectives: Objectives to minimise (see `tuner.results.objectives`). With several, the fastest config
            still is the champion, and the result has a front.
        error_limit: Largest error of a champion, as a multiple of the library's; None for no limit.
        bits: Class of bits that champions keep to (`tuner.results.objectives.read_bits`); empty for any.
        drop: True to drop kernels whose first configs are hopeless (`tuner.study.leaderboard`).
        finals_s: Seconds of `seconds` kept for the finals; by default a share.
        library: The library's earlier measurement, if a study continues; by default it is measured.
        invariant: Dim whose size must not change the bits of a row; empty for none. Its sizes up to the
            problem's are tuned, for configs of one class of rows (`tuner.report.invariant`).
    """

    problem: Problem
    kernels: tuple[Kernel, ...]
    found: tuple[DetectedDevice, ...]
    regime: str = "cold"
    seconds: float | None = 60.0
    trials: int | None = None
    seed: int = 0
    sampler: str = "tile"
    objectives: tuple[str, ...] = TIME
    error_limit: float | None = None
    bits: str = ""
    drop: bool = True
    finals_s: float | None = None
    library: Measurement | None = None
    invariant: str = ""


#: Seconds of a study if neither seconds nor trials are given.
DEFAULT_SECONDS = 60.0


class StudyOptions(TypedDict, total=False):
    """What a study is asked beside its problem; each may be left out.

    Attributes:
        device: ``cpu``, ``cuda:N``, or ``cuda`` for every GPU; by default one GPU, else the CPU. Where this,
            `seconds`, `regime` or `sampler` are left out, ``tuner.toml`` is asked.
        kernels: Names of the kernels that compete; by default all.
        seconds: Wall time; 60 unless `trials` is given.
        trials: Trials of the study in all, earlier runs included.
        regime: How times are taken: ``cold``, ``hot``, ``cold-graph``, ``hot-graph``.
        seed: Seed of the search; random by default.
        sampler: Name of the search strategy.
        objective: What is minimised: ``time``, or with others, ``time,energy``.
        error_limit: Largest rms error of a champion, as a multiple of the library's.
        bits: ``keep`` for champions with the reigning one's bits, ``library``, the name of a class; ``any`` for
            such, too, whose bits differ from run to run.
        invariant: ``m`` for configs, one for each range of M up to the problem's, with which a row of the
            result has the same bits for any M.
        db: URL of the database; by default that of ``TUNER_DB``, else ``studies.db`` in this folder.
    """

    device: str
    kernels: Sequence[str] | str
    seconds: float | None
    trials: int | None
    regime: str
    seed: int | None
    sampler: str
    objective: str
    error_limit: float | None
    bits: str
    invariant: str
    db: str


@dataclass(frozen=True)
class Asked:
    """A study that is about to run.

    Attributes:
        catalogue: Where the problem's kernels come from.
        request: What is asked.
        db: URL of the database.
    """

    catalogue: Catalogue
    request: StudyRequest
    db: str


def database_url(db: str) -> str:
    """A database, or the one that is used where none is named."""
    return db or default_database()


def asked(catalogue: Catalogue, problem: Problem, options: StudyOptions) -> Asked:
    """The study of a problem.

    Args:
        catalogue: Has the problem's kernels.
        problem: What is tuned.
        options: What is asked beside it.

    Raises:
        InputError: An option is wrong, or no kernel is for the device.
        DeviceTrouble: There is no such device here.
    """
    given: dict[str, Any] = {
        name: options.get(name) or setting(name, "tune") for name in ("device", "regime", "sampler")
    }
    names, devices = options.get("kernels") or (), find_all(given["device"] or "")
    only = (names,) if isinstance(names, str) else tuple(names)
    seconds, trials, seed = options.get("seconds"), options.get("trials"), options.get("seed")
    seconds, trials = budget(setting("seconds", "tune") if seconds is trials is None else seconds, trials)
    request = StudyRequest(
        problem, competitors(catalogue, problem, devices[0].target, only), devices, given["regime"] or "cold",
        seconds, trials, secrets.randbits(32) if seed is None else seed, given["sampler"] or "tile",
        read_objectives(options.get("objective") or "time"),
        limit_for(problem.precision, read_error_limit(options.get("error_limit"))),
        read_bits(options.get("bits")), drop=not only, invariant=options.get("invariant") or "",
    )  # fmt: skip
    check_request(request)
    return Asked(catalogue, request, database_url(options.get("db") or ""))


def budget(seconds: float | None, trials: int | None) -> tuple[float | None, int | None]:
    """Seconds and trials of a study, where one of them may be left out.

    Raises:
        InputError: One is not above 0.
    """
    if seconds is not None and not (isinstance(seconds, int | float) and 0 < seconds < math.inf):
        raise InputError(f"--seconds is a number above 0, got {seconds!r}; give e.g. 60")
    if trials is not None and not (isinstance(trials, int) and trials >= 1):
        raise InputError(f"--trials is 1 or more, got {trials!r}; give e.g. 100")
    return (DEFAULT_SECONDS if seconds is None and trials is None else seconds), trials


def competitors(catalogue: Catalogue, problem: Problem, target: str, only: Sequence[str]) -> tuple[Kernel, ...]:
    """The kernels that compete.

    Raises:
        UnknownName: No kernel has one of the names.
        InputError: The operation has no kernel for the target.
    """
    kernels = catalogue.serving(problem, target, tuple(only))
    if not kernels:
        name, dtype = problem.operation.name, problem.dtype
        others = sorted({kernel.kind for kernel in catalogue.of(name, dtype=dtype)})
        raise InputError(
            f"{f'{name} in {dtype}' if dtype in problem.operation.sums else name} has no kernel for {target}; "
            f"it has some for {', '.join(others)}"
        )
    return kernels


def check_request(request: StudyRequest) -> None:
    """Refuses invalid requests before a device is opened.

    Raises:
        DeclarationError: A kernel's source lacks the function to call.
        InputError: The regime does not suit the device, or it reports no power and energy is an objective; or
            rows cannot be invariant by such a dim.
    """
    device = request.found[0]
    check_invariant(request.problem, request.invariant, request.bits, request.objectives)
    check_regime(request.regime, device.target)
    for kernel in request.kernels:
        kernel.check_entry()
    trouble = kind_of(device.spec).power_trouble() if "energy" in request.objectives else ""
    if trouble:
        raise _no_power(device.info, trouble)


def check_invariant(problem: Problem, dim: str, bits: str, objectives: Sequence[str]) -> None:
    """Refuses a dim by which rows cannot be invariant; an empty one is none.

    Raises:
        InputError: There is more to keep or to minimise, or the operation has no rows by it.
    """
    if dim and (bits or len(objectives) > 1):
        raise InputError("--invariant goes with time alone, and chooses a class itself; leave the others out")
    if dim and (dim not in problem.dims or any(own.name not in problem.axes(dim) for own in problem.outputs)):
        rule = f"--invariant takes a dim that {problem.operation.name} has rows by"
        raise InputError(f"{rule}, got {dim!r}; give m for gemm")


def check_regime(regime: str, kind: str) -> None:
    """Refuses a regime in which a kind of device cannot be timed.

    Raises:
        InputError: The regime is for GPUs only.
    """
    if regime not in kind_of(kind).regimes:
        raise InputError(f"a CPU is timed cold or hot, got regime {regime!r}; choose one of them")


def check_energy(objectives: Sequence[str], device: DeviceInfo, measurement: Measurement) -> None:
    """Refuses energy as an objective if a measurement shows that the device reports no power.

    Raises:
        InputError: The measurement has no energy.
    """
    measured = measurement.outcome is Outcome.MEASURED and measurement.samples_s
    if "energy" in objectives and measured and "energy_j" not in measurement.circumstances:
        raise _no_power(device, "its driver reports none (NVML, nvmlDeviceGetPowerUsage)")


def _no_power(device: DeviceInfo, why: str) -> InputError:
    rule = "the objective energy needs a device that reports its power"
    return InputError(f"{rule}, {device.name} does not: {why}; choose --objective time or time,error")


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
