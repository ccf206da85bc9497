"""Writes a store's champions as text files, which people can review and read without a database."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.declare.folders import configs_folder
from tuner.declare.hardware import DeviceInfo
from tuner.errors import InputError
from tuner.results.measurement import Outcome, compare
from tuner.results.record import ELSEWHERE, OBJECTIVES_OF_STUDY, Champion, Record, Role, rank_in_time
from tuner.store.published.form import (
    ENTRIES,
    FORMAT,
    Published,
    RunnerUp,
    entries_of,
    place,
    slug,
    standing,
    text_of,
)

if TYPE_CHECKING:
    from tuner.store import Store


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


#: Number of configs published beside each champion.
RUNNERS_UP = 10


def publish(
    store: Store, directory: Path | None = None, *, operation: str = "", device: str = "", regime: str = ""
) -> list[Path]:
    """Writes the current champions to ``<directory>/<device>/<operation>.json``.

    An existing file keeps entries of problems for which the store has no champion, or only an older one.
    Results that the store has retracted are removed from every file. Kernels of a user's own file are published
    only if their operation is named, and provisional champions (`Champion.doubts`) never.

    Args:
        store: The store with the champions.
        directory: The folder to write to; the project's own ``configs/tuned`` if None.
        operation: Only this one.
        device: Only the device of this name or uuid.
        regime: Only this one.

    Returns:
        The written files, in order, including those that did not change.

    Raises:
        InputError: An existing file does not have the published form.
    """
    wanted = store.champions(operation or None, device or None, regime or None)
    by_file: dict[tuple[Path, str], list[Champion]] = {}
    for champion in wanted:
        record = champion.record
        if champion.doubts or (record.origin and not operation):
            continue
        folder = (directory or tuned_folder()) / slug(record.device.name)
        path = folder / f"{slug(record.problem.operation)}.json"
        by_file.setdefault((path, record.problem.operation), []).append(champion)
    thinned = _take_back(store, directory or tuned_folder())
    for (path, name), champions in by_file.items():
        merged = {place(each.champion): each for each in (read_file(path) if path.exists() else ())}
        for champion in champions:
            there = merged.get(place(champion))
            if there is None or _later(champion, there.champion):
                merged[place(champion)] = _published(store, champion)
        _replace(path, text_of(name, list(merged.values())))
    return sorted({*thinned, *(path for path, _ in by_file)})


def _take_back(store: Store, directory: Path) -> list[Path]:
    """Removes results that the store has retracted from existing files, and returns the changed files."""
    changed = []
    for path in sorted(directory.glob("*/*.json")):
        there = list(read_file(path))
        left = standing(there, store)
        if left == there:
            continue
        changed.append(path)
        if left:
            _replace(path, text_of(left[0].champion.record.problem.operation, left))
        else:
            path.unlink()
    return changed


def _later(champion: Champion, other: Champion) -> bool:
    """True if this champion replaces the other; the same champion is written again."""
    ours, theirs = rank_in_time(champion.crowned_at), rank_in_time(other.crowned_at)
    return (ours, champion.id) >= (theirs, other.id)


def _published(store: Store, champion: Champion) -> Published:
    record, baseline = champion.record, champion.baseline
    low = high = 0.0
    if baseline is not None and len(baseline.measurement.samples_s) == len(record.measurement.samples_s) > 0:
        paired = compare(record.measurement.samples_s, baseline.measurement.samples_s)
        low, high = paired.low, paired.high
    beside = store.records(problem=record.problem, device=record.device.name)
    same = [each for each in beside if each.regime == record.regime and each.device.kind == record.device.kind]
    seen = _energy(
        max((each for each in same if _named(each) == _named(record)), key=_tells_energy, default=record)
    )
    measurement = record.measurement
    measurement = replace(measurement, circumstances={**seen, **measurement.circumstances})
    champion = replace(champion, record=replace(record, measurement=measurement))
    return Published(champion, low, high, tuple(_runners_up(champion, same)))


def _tells_energy(record: Record) -> tuple[bool, str]:
    return "energy_j" in record.measurement.circumstances, record.measured_at


def _energy(record: Record) -> dict[str, float]:
    """Returns energy and power of a run if energy was an objective; finals do not measure them."""
    seen = record.measurement.circumstances
    return {name: seen[name] for name in ("energy_j", "power_w") if "energy_j" in seen and name in seen}


def _on_fronts(records: Iterable[Record]) -> set[str]:
    """Returns ids of the records on the Pareto fronts of studies with several objectives."""
    records = [each for each in records if OBJECTIVES_OF_STUDY in each.study]
    if not records:
        return set()
    from tuner.results.objectives import resolved, values_of
    from tuner.search import front

    by_objectives: dict[tuple[str, ...], dict[str, tuple[float, ...]]] = {}
    for each in records:
        objectives = tuple(each.study.partition(OBJECTIVES_OF_STUDY)[2].partition(",")[0].split())
        values = values_of(each.measurement, objectives)
        if values:
            by_objectives.setdefault(objectives, {})[each.id] = resolved(values)
    return {list(found)[at] for found in by_objectives.values() for at in front(list(found.values()))}


def _runners_up(champion: Champion, records: Iterable[Record]) -> list[RunnerUp]:
    """Selects finalists, best trials, fronts and measurements for other shapes; none that ever failed.

    Each config appears once. A bad config says as much as a good one about the cost of an answer from a
    neighbour.
    """
    kernels = [each for each in records if each.role is not Role.BASELINE]
    sources = {each.kernel: each.source_hash for each in kernels}  # in order of measurement: the last counts
    sources[champion.record.kernel] = champion.record.source_hash
    best: dict[tuple[Any, ...], Record] = {}
    failed = {_named(champion.record)}
    for each in kernels:
        key = _named(each)
        if each.source_hash != sources[each.kernel]:
            continue
        if each.measurement.outcome.failed:
            failed.add(key)
        elif each.measurement.outcome is Outcome.MEASURED and each.measurement.samples_s:
            best[key] = min(best.get(key, each), each, key=_merit)
    ranked = sorted((each for key, each in best.items() if key not in failed), key=_merit)
    kept = _on_fronts(ranked)
    further = (each for each in ranked[RUNNERS_UP:] if each.study.startswith(ELSEWHERE) or each.id in kept)
    chosen = [*ranked[:RUNNERS_UP], *further]
    chosen.sort(key=lambda each: (each.measurement.time_s or 0.0, each.id))
    return [_runner_up(each) for each in chosen]


def _runner_up(record: Record) -> RunnerUp:
    found = record.measurement
    return RunnerUp(
        record.kernel, record.config, found.time_s or 0.0, found.noise, record.role, record.source_hash,
        record.id, record.measured_at, found.error, _energy(record),
    )  # fmt: skip


def _merit(record: Record) -> tuple[bool, float, str]:
    """Finals before trials, then the faster."""
    return record.role is not Role.FINAL, record.measurement.time_s or 0.0, record.id


def _named(record: Record) -> tuple[Any, ...]:
    return record.kernel, tuple(sorted(_plain(record.config).items()))


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: str(value) for name, value in config.items()}


def _replace(path: Path, text: str) -> None:
    """Writes a file completely or not at all; an unchanged file is not written."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)
