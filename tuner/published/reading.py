"""Reads published results, without a database or a device."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from tuner.declare.folders import configs_folder
from tuner.declare.hardware import DeviceInfo
from tuner.errors import InputError
from tuner.published.form import ENTRIES, FORMAT, Published, entries_of, slug
from tuner.results.record import Champion


def tuned_folder() -> Path:
    """Returns the folder of the project's published results."""
    return configs_folder() / "tuned"


def entries(
    operation: str = "", directory: Path | None = None, device: tuple[str, str] | None = None
) -> list[Published]:
    """Returns published results: each a champion with the interval of its speed-up and its runners-up.

    Files are parsed once, and again if they change.

    Args:
        operation: Name; every operation when empty.
        directory: A folder of ``<device>/<operation>.json``; the project's own when None.
        device: Kind and name; every device when None. Files that tell of no such device are not read on.

    Returns:
        Results in the order of files and, within one, of problems; empty if nothing is published.

    Raises:
        InputError: A file cannot be read; the message names it.
    """
    found: list[Published] = []
    for version in _versions(operation, directory):
        if device is None or device in {(each.kind, each.name) for each in _devices(*version)}:
            found += _parsed(*version)
    return [
        each
        for each in found
        if operation in ("", each.champion.record.problem.operation)
        and device in (None, (each.champion.record.device.kind, each.champion.record.device.name))
    ]


def devices(directory: Path | None = None) -> list[DeviceInfo]:
    """Returns the devices that there are published results of, without reading the results.

    Args:
        directory: As for `entries`.

    Raises:
        InputError: A file cannot be read; the message names it.
    """
    return list(dict.fromkeys(each for version in _versions("", directory) for each in _devices(*version)))


def _versions(operation: str, directory: Path | None) -> Iterator[tuple[Path, int, int]]:
    """Yields files, each with the time of its last change and its size."""
    folder = directory or tuned_folder()
    for path in sorted(folder.glob(f"*/{slug(operation) or '*'}.json")):
        seen = path.stat()
        yield path, seen.st_mtime_ns, seen.st_size


def champions(operation: str = "", directory: Path | None = None) -> list[Champion]:
    """Returns published champions, one for each problem, device name and regime.

    They look like those from a store: ``time_s``, ``noise``, ``tflops``, ``gbps``, error, versions, baseline
    and ids are as published. Devices have no uuid, samples are quantiles. The runners-up, with their times,
    come from ``entries(operation, directory)``: each entry has ``champion`` and ``runners_up``.

    Args:
        operation: Name; every operation when empty.
        directory: A folder of ``<device>/<operation>.json``; the project's own when None.

    Raises:
        InputError: A file cannot be read; the message names it.
    """
    return [each.champion for each in entries(operation, directory)]


@functools.lru_cache(maxsize=256)
def _parsed(path: Path, changed_ns: int, size_bytes: int) -> tuple[Published, ...]:
    """Returns the entries of one version of a file."""
    return read_file(path)


@functools.lru_cache(maxsize=256)
def _devices(path: Path, changed_ns: int, size_bytes: int) -> tuple[DeviceInfo, ...]:
    """Returns the devices of one version of a file: its entries are not read if it is laid out as written."""
    try:
        with path.open(encoding="utf-8") as file:
            head = "".join(itertools.takewhile(lambda line: line.strip() != ENTRIES, file))
        told = json.loads(head.rstrip().removesuffix(",") + "}")["devices"]
        return tuple(DeviceInfo.from_json(each) for each in told.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        every = _parsed(path, changed_ns, size_bytes)
        return tuple(dict.fromkeys(each.champion.record.device for each in every))


def read_file(path: Path) -> tuple[Published, ...]:
    """Returns the entries of a file.

    Raises:
        InputError: It is not of the published form.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] > FORMAT:
            raise InputError(
                f"{path} has form {data['format']} and this version knows forms up to {FORMAT}; "
                f"upgrade tile-tuner"
            )
        return entries_of(data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"a file of published results is what `tuner records publish` writes, {path} is not ({error!r}); "
            f"restore it, or remove it and publish again"
        ) from error
