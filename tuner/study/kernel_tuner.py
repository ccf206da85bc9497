"""Kernel Tuner's cache files as records of a user's own kernel.

A cache has neither dtype nor work, and names the problem only by its size, so callers can supply these. Ids are
derived from the content, so reading a cache again adds nothing.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tuner.declare.hardware import DeviceInfo
from tuner.errors import InputError
from tuner.results.record import ProblemKey, Record, Role
from tuner.study.recorded_spaces import Cache, read_cache
from tuner.study.recorded_spaces import Cached as Config

#: Names of a problem's dims if only sizes are given, as Kernel Tuner names the axes of its grid.
AXES = ("x", "y", "z")
#: Prefix of the text from which ids are derived.
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://kerneltuner.github.io/cache")
#: Time of measurement for configs without one.
_UNKNOWN = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class Cached:
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


def records_of(cached: Cached) -> Iterator[Record]:
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


def _problem(cache: Cache) -> ProblemKey:
    return ProblemKey(cache.kernel, tuple(zip(AXES, cache.problem_size, strict=False)), "", "")


def _id(problem: ProblemKey, device: DeviceInfo, regime: str, kernel: str, each: Config) -> str:
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
