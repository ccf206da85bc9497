"""Kernel Tuner's cache files, gzipped or not: their configs with times, and the records that they become."""

import contextlib
import gzip
import json
import uuid
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
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
#: Names of a problem's dims if only sizes are given, as Kernel Tuner names the axes of its grid.
AXES = ("x", "y", "z")
#: Begins the name of the study of configs that were imported from others' files, and that nobody measured here.
IMPORTED = "imported configs of"
#: Prefix of the text from which ids are derived.
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://kerneltuner.github.io/cache")
#: Time of measurement for configs without one.
_UNKNOWN = datetime.fromtimestamp(0, UTC)


def text_of(path: Path) -> str:
    """The text of a file of JSON, gzipped or not.

    Raises:
        InputError: There is no such file, or it cannot be read.
    """
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8")
    except FileNotFoundError as error:
        raise InputError(f"a recording must exist, found none at {path}; check the path") from error
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"a recording is JSON or gzipped JSON, {path} cannot be read: {error}") from error


def cache_of(text: str, path: Path) -> Mapping[str, Any] | None:
    """The content of a Kernel Tuner cache; None if a text is none.

    A cache to which Kernel Tuner still adds ends in a comma, and is completed as Kernel Tuner would.
    """
    for whole in (text, text.rstrip().removesuffix(",") + "}}"):
        with contextlib.suppress(json.JSONDecodeError):
            data = json.loads(whole)
            if not isinstance(data, dict) or not isinstance(data.get("cache"), dict):
                return None
            names = data.get("tune_params_keys")
            if not names or any(
                name not in entry for entry in data["cache"].values() for name in (*names, "time")
            ):
                raise InputError(
                    f"a Kernel Tuner cache lists tune_params_keys, and each entry has these and a time; {path} "
                    "lacks some; check the file"
                )
            return data
    return None


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
    samples_s = tuple(sample_ms / 1e3 for sample_ms in entry.get("times") or [time_ms])
    return Measurement(Outcome.MEASURED, samples_s=samples_s, stages_s=stages)


def records_of(
    path: Path, *, device: str = "", regime: str = "hot", kernel: str = "",
    declared: tuple[Kernel, Problem] | None = None,
) -> Iterator[Record]:  # fmt: skip
    """Returns the records of a cache file.

    Args:
        path: The file.
        device: Name of the device; the file's if empty.
        regime: How times were taken; Kernel Tuner flushes no cache between launches.
        kernel: Name of the kernel; the file's if empty.
        declared: The kernel and the problem, if they are declared; by default both are named by the file.

    Raises:
        InputError: There is no such file, it has another form, or neither file nor caller names the device.
    """
    cache = cache_of(text_of(path), path)
    if cache is None:
        raise InputError(f"a Kernel Tuner cache has its configs under 'cache', {path} has none; check the file")
    device, named = device or str(cache.get("device_name", "")), str(cache.get("kernel_name", "")) or "kernel"
    if not device:
        raise InputError(f"a record needs its device, and {path} names none; name it with --device")
    kernel, source_hash, origin = kernel or named, "", ""
    problem, work = _problem(cache, named), {"flops": 0.0, "bytes": 0.0}
    if declared is not None:
        problem, work = ProblemKey.of(declared[1]), asdict(declared[1].work)
        kernel, source_hash = declared[0].name, declared[0].source_hash
        origin = str(declared[1].operation.origin or "")
    for entry in cache["cache"].values():
        config = {name: entry[name] for name in cache["tune_params_keys"]}
        measured, when = _kernel_tuner_measurement(entry), str(entry.get("timestamp", ""))
        facts = (  # they make an id that is the same whenever the file is read
            problem.operation, problem.shape, problem.arithmetic, problem.layout, device, regime, kernel,
            config, measured.outcome.value, measured.samples_s, when,
        )  # fmt: skip
        yield Record(
            problem, DeviceInfo(device, "cuda"), regime, Role.TRIAL, kernel, config, source_hash, measured,
            work, {"measured_by": "Kernel Tuner"}, f"Kernel Tuner {problem}", origin=origin,
            id=str(uuid.uuid5(_NAMESPACE, json.dumps(facts))), measured_at=_when(when),
        )  # fmt: skip


def _problem(data: Mapping[str, Any], name: str) -> ProblemKey:
    size = data.get("problem_size", ())
    sizes = [int(one) for one in (size if isinstance(size, list) else [size]) if isinstance(one, int | float)]
    return ProblemKey(name, tuple(zip(AXES, sizes, strict=False)), "", "")


def _when(text: str) -> str:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        when = _UNKNOWN
    utc = when.astimezone(UTC) if when.tzinfo else when.replace(tzinfo=UTC)
    return utc.isoformat(timespec="microseconds")
