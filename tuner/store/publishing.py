"""Writes a store's champions as text files, which people can review and read without a database."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.declare.folders import write_whole
from tuner.results.measurement import Outcome, compare
from tuner.results.record import ELSEWHERE, Champion, Record, Role, rank_in_time
from tuner.store import Store
from tuner.store.published import Published, read_file, slug, standing, text_of, tuned_folder

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
    folder = directory or tuned_folder()
    by_file: dict[tuple[Path, str], list[Champion]] = {}
    for champion in store.champions(operation or None, device or None, regime or None):
        record = champion.record
        if not champion.doubts and (operation or not record.origin):
            path = folder / slug(record.device.name) / f"{slug(record.problem.operation)}.json"
            by_file.setdefault((path, record.problem.operation), []).append(champion)
    thinned = _take_back(store, folder)
    for (path, name), champions in by_file.items():
        merged = {result.champion.place: result for result in (read_file(path) if path.exists() else ())}
        for champion in champions:
            there = merged.get(champion.place)
            if there is None or _age(champion) >= _age(there.champion):
                merged[champion.place] = _published(store, champion)
        _replace(path, text_of(name, list(merged.values())))
    return sorted({*thinned, *(path for path, _ in by_file)})


def _age(champion: Champion) -> tuple[str, str]:
    return rank_in_time(champion.crowned_at), champion.id


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


def _replace(path: Path, text: str) -> None:
    """Writes a file; an unchanged file is not written."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_whole(path, text.encode())


def _published(store: Store, champion: Champion) -> Published:
    record, baseline = champion.record, champion.baseline
    measurement = record.measurement
    low = high = 0.0
    if baseline is not None and len(baseline.measurement.samples_s) == len(measurement.samples_s) > 0:
        paired = compare(measurement.samples_s, baseline.measurement.samples_s)
        low, high = paired.low, paired.high
    beside = store.records(problem=record.problem, device=record.device, regime=record.regime)
    return Published(champion, low, high, tuple(_runners_up(record, beside)))


def _runners_up(champion: Record, records: Iterable[Record]) -> list[Record]:
    """Selects finalists, best trials and measurements for other shapes; none that ever failed.

    Each config appears once. A bad config says as much as a good one about the cost of an answer from a
    neighbour.
    """
    kernels = [record for record in records if record.role is not Role.BASELINE]
    # In the order of measurement: the last counts.
    sources = {record.kernel: record.source_hash for record in kernels}
    sources[champion.kernel] = champion.source_hash
    best: dict[tuple[Any, ...], Record] = {}
    failed = {_config(champion)}
    for record in kernels:
        key = _config(record)
        if record.source_hash != sources[record.kernel]:
            continue
        if record.measurement.outcome.failed:
            failed.add(key)
        elif record.measurement.outcome is Outcome.MEASURED and record.measurement.samples_s:
            best[key] = min(best.get(key, record), record, key=_merit)
    ranked = sorted((record for key, record in best.items() if key not in failed), key=_merit)
    further = (record for record in ranked[RUNNERS_UP:] if record.study.startswith(ELSEWHERE))
    chosen = sorted([*ranked[:RUNNERS_UP], *further], key=lambda record: (record.measurement.time_s, record.id))
    return [replace(record, measurement=replace(record.measurement, circumstances={})) for record in chosen]


def _merit(record: Record) -> tuple[bool, float, str]:
    """Finals before trials, then the faster."""
    return record.role is not Role.FINAL, record.measurement.time_s or 0.0, record.id


def _config(record: Record) -> tuple[Any, ...]:
    """What a config is unique for, in texts."""
    return record.kernel, tuple(sorted((name, str(value)) for name, value in record.config.items()))
