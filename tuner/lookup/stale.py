"""Whether what a record says still holds: kernel, compiler and driver as they are now against as they were."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Mapping
from typing import Any

from tuner.declare.catalogue import Catalogue, builtin
from tuner.declare.folders import kernels_folder
from tuner.declare.hardware import DeviceInfo
from tuner.devices.detect import kind_of, language_of
from tuner.results.record import Record, measured_as_now

#: Seconds between two looks at the files.
LOOK_EVERY_S = 1.0


#: When the files were looked at, by `time.monotonic`, and the catalogue then.
_LATEST: list[Any] = [-math.inf, None]


def builtin_now() -> Catalogue:
    """The built-in catalogue; executing all declarations takes longer than any lookup."""
    now_s = time.monotonic()
    if now_s >= _LATEST[0] + LOOK_EVERY_S:
        paths = sorted(path for path in kernels_folder().rglob("*") if path.is_file() and path.suffix != ".pyc")
        files = tuple((str(path), (of := path.stat()).st_mtime_ns, of.st_size) for path in paths)
        _LATEST[:] = now_s, _builtin_of(files)
    catalogue: Catalogue = _LATEST[1]
    return catalogue


@functools.lru_cache(maxsize=1)
def _builtin_of(files: tuple[tuple[str, int, int], ...]) -> Catalogue:
    """The catalogue of files with their times of change and sizes."""
    return builtin()


def staleness(
    record: Record, catalogue: Catalogue | None = None, device: DeviceInfo | None = None,
    versions: Mapping[str, str] | None = None,
) -> tuple[bool | None, str]:  # fmt: skip
    """Whether kernel, compiler or driver have changed since a record was measured.

    Args:
        record: A kernel's record.
        catalogue: Kernels as they are now; the built-in ones when None, which say nothing of a kernel of a
            user's own file.
        device: The device as it is now; None to leave the driver out. A device of another name than the
            record's is left out too, and so is a CPU's: its operating system does not change its kernels.
        versions: What takes part now, as an open device tells it; ``compiler``, ``driver`` and ``library`` are
            compared. What is not among them is left out.

    Returns:
        True where something has changed, None where that is not known of the kernel; and what.
    """
    stale, why = _by_source(record, catalogue)
    if stale:
        return stale, why
    for what, then, now in _compared(record, device, versions or {}):
        if then and now and then != now and (what == "driver" or then.split()[0] == now.split()[0]):
            return True, f"the {what} was {then} when it was measured and is {now}; tune again"
    return stale, why


def _by_source(record: Record, catalogue: Catalogue | None) -> tuple[bool | None, str]:
    if catalogue is None and record.origin:
        return None, f"kernel {record.kernel!r} is declared in {record.origin}, which was not read"
    declared, named = catalogue or builtin_now(), (record.problem.operation, record.kernel)
    for kernel in declared.kernels:
        if (kernel.operation, kernel.name) != named or kernel.kind != record.device.kind:
            continue
        if kernel.source_hash != record.source_hash:
            return True, (
                f"kernel {record.kernel!r} has changed since: its source was {record.source_hash} and is "
                f"{kernel.source_hash}; tune again"
            )
        if measured_as_now(record, kernel, record.problem.of_operation(declared.operation(kernel.operation))):
            return False, ""
        return True, f"kernel {record.kernel!r} is launched otherwise than when it was measured; tune again"
    return True, f"kernel {record.kernel!r} is no longer declared; tune again"


def _compared(
    record: Record, device: DeviceInfo | None, versions: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """(what, version then, version now), where both may be empty."""
    if device is None or (device.kind, device.name) != (record.device.kind, record.device.name):
        return []
    compared = [("compiler", record.versions.get("compiler", ""), versions.get("compiler", ""))]
    compared.append(("library", record.versions.get("library", ""), versions.get("library", "")))
    if kind_of(device.kind).driver_counts:
        compared.append(("driver", record.device.driver, versions.get("driver", "") or device.driver))
    return compared


def installed_versions(record: Record, catalogue: Catalogue) -> dict[str, str]:
    """What would be used here for a record's kernel: a compiler, or a library."""
    named = record.problem.operation, record.kernel, record.device.kind
    for kernel in catalogue.kernels:
        if (kernel.operation, kernel.name, kernel.kind) == named:
            return {"library" if kernel.is_library else "compiler": installed_compiler(kernel.target)}
    return {}


@functools.cache
def installed_compiler(target: str) -> str:
    """The compiler, or library, that kernels with a target would use here; empty where that is not known."""
    import importlib.metadata  # slow to load, and most lookups are of devices that are elsewhere

    for package, form in language_of(target).compiler_packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(package)
            return form.format(version, *version.split("."))
    return ""
