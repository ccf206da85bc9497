"""Recorded spaces: every config of a kernel with its samples, read from a file, without a device.

Two forms are read: Kernel Tuner's cache files, and our own records of one problem and device (the output of
`tuner records export`, a JSON list of records, or an object with a list under ``records``; each has ``kernel``,
``config`` and ``measurement``). Both may be gzipped.
"""

from __future__ import annotations

import gzip
import json
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.declare.hardware import DeviceInfo
from tuner.declare.space import Config, Space, Value, choice
from tuner.errors import InputError
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import ProblemKey, Record, Role

#: Text that Kernel Tuner writes in place of a time -> its meaning.
_KERNEL_TUNER_FAILURES = {
    "InvalidConfig": Outcome.INVALID,
    "CompilationFailedConfig": Outcome.COMPILE_FAILED,
    "RuntimeFailedConfig": Outcome.LAUNCH_FAILED,
    "VerificationFailedConfig": Outcome.WRONG_RESULT,
}
#: Kernel Tuner's times of a trial's stages, in milliseconds.
_KERNEL_TUNER_STAGES = {"compile_time": "compile", "verification_time": "verify", "benchmark_time": "time"}


@dataclass(frozen=True)
class RecordedKernel:
    """One kernel's recorded configs.

    Attributes:
        space: The configs, all of them legal.
        measurements: Measurements in the order of the space.
    """

    space: Space
    measurements: tuple[Measurement, ...]
    mean_s: NDArray[np.float64] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        means = [
            sum(each.samples_s) / len(each.samples_s) if each.outcome is Outcome.MEASURED else np.inf
            for each in self.measurements
        ]
        object.__setattr__(self, "mean_s", np.array(means))


@dataclass(frozen=True)
class CacheEntry:
    """One config of a Kernel Tuner cache.

    Attributes:
        config: The config.
        measurement: Its recorded measurement.
        measured_at: Time as Kernel Tuner wrote it; empty if it did not.
    """

    config: Config
    measurement: Measurement
    measured_at: str


@dataclass(frozen=True)
class KernelTunerCache:
    """A Kernel Tuner cache.

    Attributes:
        kernel: Name.
        device: Name of the recorded device; empty if the file has none.
        problem_size: Problem size as given to Kernel Tuner; empty if the file has none.
        configs: Configs in the order of the file.
    """

    kernel: str
    device: str
    problem_size: tuple[int, ...]
    configs: tuple[CacheEntry, ...]


@dataclass(frozen=True)
class Recording:
    """A recorded space.

    Attributes:
        name: Name of the file without its suffixes.
        device: Name of the recorded device.
        kernels: Kernels by name.
    """

    name: str
    device: str
    kernels: Mapping[str, RecordedKernel]

    @property
    def spaces(self) -> dict[str, Space]:
        """The space of each kernel."""
        return {name: each.space for name, each in self.kernels.items()}

    @property
    def optimum_s(self) -> float:
        """Mean time of the fastest config, in seconds."""
        return float(min(each.mean_s.min() for each in self.kernels.values()))

    def measurement(self, kernel: str, config: Config) -> Measurement:
        """Returns the recorded measurement of a config."""
        recorded = self.kernels[kernel]
        return recorded.measurements[recorded.space.index_of(config)]


def read_recording(path: Path) -> Recording:
    """Reads a recorded space.

    Args:
        path: A ``.json`` or ``.json.gz`` file.

    Raises:
        InputError: There is no such file, it has neither form, or no config in it has a time.
    """
    data = _parsed(path)
    name = path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".jsonl")
    rows: Iterable[tuple[str, Config, Measurement]]
    if isinstance(data, dict) and isinstance(data.get("cache"), dict):
        cache = _cache(data, path)
        device, rows = cache.device, ((cache.kernel, each.config, each.measurement) for each in cache.configs)
    else:
        device, rows = _our_rows(data, path)
    by_kernel: dict[str, dict[Config, Measurement]] = {}
    for kernel, config, measurement in rows:
        by_kernel.setdefault(kernel, {})[config] = measurement
    kernels = {kernel: _recorded(configs) for kernel, configs in by_kernel.items()}
    if not any(np.isfinite(each.mean_s).any() for each in kernels.values()):
        raise InputError(f"a recording has a config with a time, got none in {path}; check the file")
    return Recording(name, device, kernels)


def read_cache(path: Path) -> KernelTunerCache:
    """Reads a Kernel Tuner cache.

    Args:
        path: A ``.json`` or ``.json.gz`` file.

    Raises:
        InputError: There is no such file, or it has another form.
    """
    data = _parsed(path)
    if not isinstance(data, dict) or not isinstance(data.get("cache"), dict):
        raise InputError(f"a Kernel Tuner cache has its configs under 'cache', {path} has none; check the file")
    return _cache(data, path)


def _recorded(configs: Mapping[Config, Measurement]) -> RecordedKernel:
    names = list(next(iter(configs)))
    values: dict[str, dict[Value, None]] = {name: {} for name in names}
    for config in configs:
        if list(config) != names:
            raise InputError(
                f"all configs of a kernel have the same parameters, got {', '.join(names)} and "
                f"{', '.join(config)}; split the recording"
            )
        for name, value in config.items():
            values[name][value] = None
    parameters = [choice(name, *seen) for name, seen in values.items()]
    return RecordedKernel(Space.of(parameters, configs), tuple(configs.values()))


def _parsed(path: Path) -> Any:
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8")
    except FileNotFoundError as error:
        raise InputError(f"a recording must exist, found none at {path}; check the path") from error
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"a recording is JSON or gzipped JSON, {path} cannot be read: {error}") from error
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if (exported := _exported(text)) is not None:
            return exported
        # While Kernel Tuner runs, its cache is unfinished and ends in a comma: complete it as Kernel Tuner
        # would.
        try:
            return json.loads(text.rstrip().removesuffix(",") + "}}")
        except json.JSONDecodeError:
            raise InputError(f"a recording is JSON, {path} is not: {error}") from error


def _exported(text: str) -> list[Any] | None:
    """Returns the records of JSON lines; None if the text has another form."""
    try:
        lines = [json.loads(line) for line in text.splitlines()]
    except json.JSONDecodeError:
        return None
    return [line["record"] for line in _dicts(lines) if "record" in line]


def _cache(data: Mapping[str, Any], path: Path) -> KernelTunerCache:
    names = data.get("tune_params_keys")
    if not isinstance(names, list) or not names:
        raise InputError(f"a Kernel Tuner cache lists tune_params_keys, {path} does not; check the file")
    configs = []
    for key, entry in data["cache"].items():
        missing = [name for name in names if name not in entry]
        if missing or "time" not in entry:
            raise InputError(
                f"an entry of a Kernel Tuner cache has its parameters and a time, {path} lacks "
                f"{', '.join(missing) or 'time'} in {key!r}; check the file"
            )
        config = Config({name: entry[name] for name in names})
        configs.append(CacheEntry(config, _kernel_tuner_measurement(entry), str(entry.get("timestamp", ""))))
    told = data.get("problem_size", ())
    sizes = told if isinstance(told, list) else [told]
    return KernelTunerCache(
        kernel=str(data.get("kernel_name", "")) or "kernel",
        device=str(data.get("device_name", "")),
        problem_size=tuple(int(size) for size in sizes if isinstance(size, int | float)),
        configs=tuple(configs),
    )  # fmt: skip


def _kernel_tuner_measurement(entry: Mapping[str, Any]) -> Measurement:
    stages = {
        ours: float(entry[theirs]) / 1e3
        for theirs, ours in _KERNEL_TUNER_STAGES.items()
        if isinstance(entry.get(theirs), int | float)
    }
    time_ms = entry["time"]
    if not isinstance(time_ms, int | float) or not 0 < time_ms < 1e20:
        # Old caches hold 1e20 for a failed config.
        outcome = _KERNEL_TUNER_FAILURES.get(str(time_ms), Outcome.LAUNCH_FAILED)
        return Measurement(outcome, reason=str(time_ms), stages_s=stages)
    samples_ms = entry.get("times") or [time_ms]
    return Measurement(Outcome.MEASURED, samples_s=tuple(each / 1e3 for each in samples_ms), stages_s=stages)


def _dicts(records: Iterable[Any]) -> Iterable[dict[str, Any]]:
    return (record for record in records if isinstance(record, dict))


def _our_rows(data: Any, path: Path) -> tuple[str, list[tuple[str, Config, Measurement]]]:
    records = data.get("records") if isinstance(data, dict) else data
    if not isinstance(records, list):
        raise InputError(
            f"a recording is a Kernel Tuner cache or a list of our records, {path} is neither; "
            "export one, or give a cache file"
        )
    device = ""
    rows = []
    of = {json.dumps([each.get(name) for name in ("problem", "regime")]) for each in _dicts(records)}
    if len(of) > 1:
        raise InputError(
            f"a recording is of one problem and regime, {path} has {len(of)}; choose one with "
            f"`tuner records export --operation --shape --regime`"
        )
    for number, record in enumerate(records):
        try:
            if record.get("role", "trial") != "trial":
                continue
            measurement = Measurement.from_json(record["measurement"])
            rows.append((str(record["kernel"]), Config(record["config"]), measurement))
            device = device or str(record.get("device", {}).get("name", ""))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise InputError(
                f"a record has kernel, config and measurement, number {number} of {path} has not: {error!r}"
            ) from error
    return device, rows


#: Names of a problem's dims if only sizes are given, as Kernel Tuner names the axes of its grid.
AXES = ("x", "y", "z")
#: Prefix of the text from which ids are derived.
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://kerneltuner.github.io/cache")
#: Time of measurement for configs without one.
_UNKNOWN = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class CacheFile:
    """A cache file, with further facts that it lacks.

    Attributes:
        path: The file.
        device: Name of the device; the file's if empty.
        problem: The problem; if None, named by the file's kernel and problem size.
        kernel: Name of the kernel; the file's if empty.
        source_hash: `tuner.declare.kernel.Kernel.source_hash`, if it is declared.
        origin: File that declares it.
        work: ``flops`` and ``bytes`` of one run; 0 if unknown.
        regime: How times were taken; Kernel Tuner flushes no cache between launches.
    """

    path: Path
    device: str = ""
    problem: ProblemKey | None = None
    kernel: str = ""
    source_hash: str = ""
    origin: str = ""
    work: Mapping[str, float] = field(default_factory=lambda: {"flops": 0.0, "bytes": 0.0})
    regime: str = "hot"


def is_cache(path: Path) -> bool:
    """True if a file has the name of a Kernel Tuner cache: ``.json``, gzipped or not."""
    return path.name.removesuffix(".gz").endswith(".json")


def records_of(cached: CacheFile) -> Iterator[Record]:
    """Returns the records of a cache file.

    Raises:
        InputError: There is no such file, it has another form, or neither file nor caller names the device.
    """
    cache = read_cache(cached.path)
    name = cached.device or cache.device
    if not name:
        raise InputError(f"a record needs its device, and {cached.path} names none; name it with --device")
    problem = cached.problem or _problem(cache)
    device, kernel = DeviceInfo(name, "cuda"), cached.kernel or cache.kernel
    for each in cache.configs:
        yield Record(
            problem, device, cached.regime, Role.TRIAL, kernel, dict(each.config), cached.source_hash,
            each.measurement, cached.work, {"measured_by": "Kernel Tuner"}, f"Kernel Tuner {problem}",
            origin=cached.origin, id=_id(problem, device, cached.regime, kernel, each),
            measured_at=_when(each.measured_at),
        )  # fmt: skip


def _problem(cache: KernelTunerCache) -> ProblemKey:
    return ProblemKey(cache.kernel, tuple(zip(AXES, cache.problem_size, strict=False)), "", "")


def _id(problem: ProblemKey, device: DeviceInfo, regime: str, kernel: str, each: CacheEntry) -> str:
    of = each.measurement
    told = (
        problem.operation, problem.shape, problem.arithmetic, problem.layout, device.name, regime, kernel,
        dict(each.config), of.outcome.value, of.samples_s, each.measured_at,
    )  # fmt: skip
    return str(uuid.uuid5(_NAMESPACE, json.dumps(told)))


def _when(told: str) -> str:
    try:
        when = datetime.fromisoformat(told)
    except ValueError:
        when = _UNKNOWN
    utc = when.astimezone(UTC) if when.tzinfo else when.replace(tzinfo=UTC)
    return utc.isoformat(timespec="microseconds")
