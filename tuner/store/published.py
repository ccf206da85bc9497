"""Results that come with the project: reviewed text files, read without a database.

``configs/tuned/<device>/<operation>.json`` holds one block for each problem: the champion, the library measured
beside it, and the runners-up. `publish` writes them from a store; people can review them.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.declare.folders import configs_folder, write_whole
from tuner.declare.hardware import DeviceInfo
from tuner.errors import InputError
from tuner.results import codec
from tuner.results.measurement import Measurement, Outcome, compare
from tuner.results.record import ELSEWHERE, Champion, ProblemKey, Record, Role, latest_hash, rank_in_time

if TYPE_CHECKING:
    from tuner.store import Store
    from tuner.store.reading import Reader

#: Number of configs published beside each champion.
RUNNERS_UP = 10
#: Version of the form; files of a higher one are refused. In form 1 runners-up had no record, error or energy.
FORMAT = 2
#: What a file writes on a line before its entries, after all else.
_ENTRIES = '"entries": ['
#: Shares of the ordered samples whose values are published.
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
#: Significant digits of measured numbers: far below the noise of any timing.
DIGITS = 6


@dataclass(frozen=True)
class Published:
    """One problem's published result.

    Attributes:
        champion: The champion, as from a store. The measurements hold quantiles of the samples, and their
            ``time_s`` and ``noise`` are those of all samples.
        speedup_low: Lower end of the interval of the champion's speed-up over the library; 0 without one.
        speedup_high: Upper end of that interval.
        runners_up: Records of other configs, fastest first, without duplicates or the champion. What is not
            published of them is the champion's; in files of form 1 they have no id.
    """

    champion: Champion
    speedup_low: float
    speedup_high: float
    runners_up: tuple[Record, ...]

    @property
    def ids(self) -> list[str]:
        """Ids that must count for the result to count: of the champion and its records."""
        library = self.champion.baseline
        return [self.champion.id, self.champion.record.id, *([library.id] if library else [])]


@dataclass(frozen=True)
class SummarisedMeasurement(Measurement):
    """A measurement that keeps only quantiles of its samples; median and noise are those of all samples.

    Attributes:
        samples_count: Number of samples.
        published_time_s: Their median in seconds.
        published_noise: Their noise as a fraction.
    """

    samples_count: int = 0
    published_time_s: float = 0.0
    published_noise: float = 0.0

    @property
    def time_s(self) -> float | None:
        """Median of all samples in seconds; None without samples."""
        return self.published_time_s if self.samples_s else None

    @property
    def noise(self) -> float:
        """Noise of all samples."""
        return self.published_noise


def tuned_folder() -> Path:
    """Returns the folder of the project's published results."""
    return configs_folder() / "tuned"


def slug(name: str) -> str:
    """Converts a name for folders and files: small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-")


# --- reading -------------------------------------------


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
    results: list[Published] = []
    for version in _versions(operation, directory):
        if device is None or device in {(info.kind, info.name) for info in _devices(*version)}:
            results += _parsed(*version)
    return [
        result
        for result in results
        if operation in ("", result.champion.record.problem.operation)
        and device in (None, (result.champion.record.device.kind, result.champion.record.device.name))
    ]


def champions(operation: str = "", directory: Path | None = None) -> list[Champion]:
    """Returns published champions, one for each problem, device name and regime.

    They look like those from a store: ``time_s``, ``noise``, ``tflops``, ``gbps``, error, versions, baseline
    and ids are as published. Devices have no uuid, samples are quantiles. The runners-up come from
    ``entries(operation, directory)``: each entry has ``champion`` and ``runners_up``.

    Args:
        operation: Name; every operation when empty.
        directory: A folder of ``<device>/<operation>.json``; the project's own when None.

    Raises:
        InputError: A file cannot be read; the message names it.
    """
    return [result.champion for result in entries(operation, directory)]


def reigning_champion(store: Reader, problem: ProblemKey, device: DeviceInfo, regime: str) -> Champion | None:
    """The champion of a problem in a database or, where it has none, the published one of such a device."""
    own = store.champion(problem, device, regime)
    known = [] if own else entries(problem.operation, device=(device.kind, device.name))
    of = [(one, one.champion.record) for one in known]
    here = [one for one, record in of if (record.problem, record.regime) == (problem, regime)]
    return own or next((one.champion for one in standing(here, store)), None)


def devices(directory: Path | None = None) -> list[DeviceInfo]:
    """Returns the devices that there are published results of, without reading the results.

    Args:
        directory: As for `entries`.

    Raises:
        InputError: A file cannot be read; the message names it.
    """
    return list(dict.fromkeys(info for version in _versions("", directory) for info in _devices(*version)))


def standing(published: Iterable[Published], store: Reader | None) -> list[Published]:
    """Returns results whose champion and records still count in a database, with such runners-up.

    Args:
        published: Results.
        store: The database; if None, nothing is retracted.
    """
    results = list(published)
    if store is None or not results:
        return results
    from tuner.store.retracting import retracted

    beside = [record.id for result in results for record in result.runners_up if record.id]
    gone = retracted(store, [*(name for result in results for name in result.ids), *beside])
    if not gone:
        return results
    return [
        replace(result, runners_up=tuple(record for record in result.runners_up if record.id not in gone))
        for result in results
        if gone.keys().isdisjoint(result.ids)
    ]


def _versions(operation: str, directory: Path | None) -> Iterator[tuple[Path, int, int]]:
    """Yields files, each with the time of its last change and its size."""
    for path in sorted((directory or tuned_folder()).glob(f"*/{slug(operation) or '*'}.json")):
        stat = path.stat()
        yield path, stat.st_mtime_ns, stat.st_size


@functools.lru_cache(maxsize=256)
def _parsed(path: Path, changed_ns: int, size_bytes: int) -> tuple[Published, ...]:
    """Returns the entries of one version of a file."""
    return read_file(path)


@functools.lru_cache(maxsize=256)
def _devices(path: Path, changed_ns: int, size_bytes: int) -> tuple[DeviceInfo, ...]:
    """Returns the devices of one version of a file: its entries are not read if it is laid out as written."""
    try:
        with path.open(encoding="utf-8") as file:
            head = "".join(itertools.takewhile(lambda line: line.strip() != _ENTRIES, file))
        infos = json.loads(head.rstrip().removesuffix(",") + "}")["devices"].values()
        return tuple(map(DeviceInfo.from_json, infos))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        every = _parsed(path, changed_ns, size_bytes)
        return tuple(dict.fromkeys(result.champion.record.device for result in every))


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
        infos = {key: DeviceInfo.from_json(info) for key, info in data["devices"].items()}
        return tuple(_entry_of(entry, data, infos) for entry in data["entries"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"a file of published results is what `tuner records publish` writes, {path} is not ({error!r}); "
            f"restore it, or remove it and publish again"
        ) from error


def _entry_of(entry: Mapping[str, Any], data: Mapping[str, Any], infos: Mapping[str, DeviceInfo]) -> Published:
    """Reads an entry of a file.

    Args:
        entry: The entry.
        data: The file.
        infos: Its devices by their keys.
    """
    problem = entry["problem"] | {"shape": entry["problem"]["shape"].items(), "operation": data["operation"]}
    place = ProblemKey.from_json(problem), infos[entry["device"]], entry["regime"]

    def record(measured: Mapping[str, Any], role: Role) -> Record:
        own = {
            "id": measured.get("record_id", ""),
            "measured_at": measured.get("measured_at", entry["measured_at"]),
        }  # fmt: skip
        versions = data["versions"][measured.get("versions", entry["versions"])]
        return Record(
            *place, role, measured["kernel"], measured["config"], latest_hash(measured["source_hash"]),
            _measurement_of(measured), measured.get("work", entry["work"]), versions, **own,
        )  # fmt: skip

    library, speedup = entry["baseline"], entry["speedup"]
    champion = Champion(
        record(entry, Role.FINAL), record(library, Role.BASELINE) if library else None, speedup["ratio"],
        entry["verdict"], entry["trials"], id=entry["champion_id"], crowned_at=entry["crowned_at"],
    )  # fmt: skip
    beside = tuple(record(other, Role(other["role"])) for other in entry["runners_up"])
    return Published(champion, speedup["low"], speedup["high"], beside)


def _measurement_of(measured: Mapping[str, Any]) -> SummarisedMeasurement:
    samples = measured.get("samples", {"count": 1, "quantiles_s": [measured["time_s"]]})
    summary = {
        "outcome": "MEASURED", "samples_s": samples["quantiles_s"], "samples_count": samples["count"],
        "published_time_s": measured["time_s"], "published_noise": measured["noise"],
    }  # fmt: skip
    return codec.from_json(SummarisedMeasurement, {**measured, **summary})


# --- writing -------------------------------------------


def text_of(operation: str, results: Sequence[Published]) -> str:
    """Returns the text of an operation's entries on one device; equal entries make equal text.

    A block for each problem has a line for each config.
    """
    shared: dict[str, dict[str, Any]] = {"devices": {}, "versions": {}}
    ordered = sorted(results, key=lambda result: result.champion.place)
    blocks = [_block(_entry_json(result, shared), 4) for result in ordered]
    parts = [
        '"about": "Reviewed results; written by `tuner records publish`, explained in docs/records.md"',
        f'"format": {FORMAT}',
        f'"operation": {json.dumps(operation)}',
        *(f'"{name}": {_block(dict(sorted(values.items())), 2).lstrip()}' for name, values in shared.items()),
        f"{_ENTRIES}\n" + ",\n".join(blocks) + "\n  ]",
    ]
    return "{\n  " + ",\n  ".join(parts) + "\n}\n"


def _block(data: Mapping[str, Any], indent: int) -> str:
    """An object with a line for each value, and for each runner-up."""
    pad, rows = " " * indent, []
    for key, value in data.items():
        text = json.dumps(value)
        if key == "runners_up" and value:
            text = "[\n" + ",\n".join(f"{pad}    {json.dumps(other)}" for other in value) + f"\n{pad}  ]"
        rows.append(f"{pad}  {json.dumps(key)}: {text}")
    return f"{pad}{{\n" + ",\n".join(rows) + f"\n{pad}}}"


def _key_in(shared: dict[str, Any], data: Mapping[str, Any]) -> str:
    """Returns the short key under which entries share a value, which is written once."""
    key = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:8]
    shared[key] = data
    return key


def _rounded(value: Any) -> Any:
    """Rounds measured numbers, also within an object, to the published digits; returns the rest unchanged."""
    if isinstance(value, Mapping):
        return {name: _rounded(part) for name, part in value.items()}
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _entry_json(result: Published, shared: dict[str, dict[str, Any]]) -> dict[str, Any]:
    champion, record, library = result.champion, result.champion.record, result.champion.baseline
    problem = record.problem
    speedup = {"ratio": champion.speedup, "low": result.speedup_low, "high": result.speedup_high}
    return {
        "problem": {"shape": problem.dims, "dtype": problem.arithmetic, "layout": problem.layout},
        "regime": record.regime,
        "device": _key_in(shared["devices"], replace(record.device, uuid="").to_json()),
        **_measured_json(record, shared["versions"]),
        "baseline": _measured_json(library, shared["versions"]) if library else None,
        "speedup": _rounded(speedup), "verdict": champion.verdict, "trials": dict(champion.trials),
        "champion_id": champion.id, "crowned_at": champion.crowned_at,
        "runners_up": [_runner_up_json(other) for other in result.runners_up],
    }  # fmt: skip


def _runner_up_json(record: Record) -> dict[str, Any]:
    measurement = codec.to_json(record.measurement)
    optional = {
        "record_id": record.id, "measured_at": record.measured_at if record.id else "",
        "error": _rounded(measurement["error"]), "circumstances": _rounded(measurement["circumstances"]),
    }  # fmt: skip
    return {
        "kernel": record.kernel, "config": dict(record.config),
        "time_s": _rounded(record.measurement.time_s or 0.0), "noise": _rounded(record.measurement.noise),
        "role": record.role.value, "source_hash": record.source_hash,
        **{name: value for name, value in optional.items() if value},
    }  # fmt: skip


def _measured_json(record: Record, versions: dict[str, Any]) -> dict[str, Any]:
    measurement, time_s = record.measurement, _rounded(record.measurement.time_s or 0.0)
    rates = {name: value / time_s if time_s else 0.0 for name, value in record.work.items()}
    data = codec.to_json(measurement)
    return {
        "kernel": record.kernel, "config": dict(record.config), "time_s": time_s,
        "noise": _rounded(measurement.noise), "tflops": _rounded(rates.get("flops", 0.0) / 1e12),
        "gbps": _rounded(rates.get("bytes", 0.0) / 1e9), "samples": _samples_json(measurement),
        "work": dict(record.work), "error": _rounded(data["error"]), "compiled": data["compiled"],
        "circumstances": _rounded(data["circumstances"]), "source_hash": record.source_hash,
        "versions": _key_in(versions, dict(record.versions)), "record_id": record.id,
        "measured_at": record.measured_at,
    }  # fmt: skip


def _samples_json(measurement: Measurement) -> dict[str, Any]:
    ordered = sorted(measurement.samples_s)
    if isinstance(measurement, SummarisedMeasurement):
        return {"count": measurement.samples_count, "quantiles_s": ordered}
    picked = [ordered[round(share * (len(ordered) - 1))] for share in QUANTILES] if ordered else []
    return {"count": len(ordered), "quantiles_s": [_rounded(value) for value in picked]}


# --- writing -------------------------------------------


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
