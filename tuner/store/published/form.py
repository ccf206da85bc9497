"""The published form of results: one block for each problem, one line for each config."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tuner.declare.hardware import DeviceInfo
from tuner.results import codec
from tuner.results.measurement import Error, Measurement, Outcome
from tuner.results.record import Champion, ProblemKey, Record, Role, latest_hash

if TYPE_CHECKING:
    from tuner.store.reading import Reader


#: Version of the form; files of a higher one are refused. In form 1 runners-up had no record, error or energy.
FORMAT = 2
#: What a file writes on a line before its entries, after all else.
ENTRIES = '"entries": ['
#: Shares of the ordered samples whose values are published.
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
#: Significant digits of measured numbers: far below the noise of any timing.
DIGITS = 6


@dataclass(frozen=True)
class RunnerUp:
    """A config measured for a problem beside its champion.

    Attributes:
        kernel: Kernel's name.
        config: The config.
        time_s: Median in seconds.
        noise: Noise of the samples, as a fraction.
        role: ``final``: timed in alternation with the champion; ``trial``: timed separately, in the search.
        source_hash: `tuner.declare.kernel.Kernel.source_hash`.
        record_id: Id of its record; empty in files of form 1.
        measured_at: ISO 8601, UTC; empty in files of form 1.
        error: Error against the reference; None if it was not kept.
        circumstances: ``energy_j`` and ``power_w``, if energy was an objective.
    """

    kernel: str
    config: Mapping[str, Any]
    time_s: float
    noise: float
    role: Role
    source_hash: str
    record_id: str = ""
    measured_at: str = ""
    error: Error | None = None
    circumstances: Mapping[str, float] = field(default_factory=dict)

    def as_record(self, champion: Record) -> Record:
        """Returns the published part of its record, completed from the champion's."""
        measurement = SummarisedMeasurement(
            Outcome.MEASURED, samples_s=(self.time_s,), error=self.error, circumstances=self.circumstances,
            samples_count=1, published_time_s=self.time_s, published_noise=self.noise,
        )  # fmt: skip
        return replace(
            champion, kernel=self.kernel, config=dict(self.config), source_hash=self.source_hash,
            measurement=measurement, role=self.role, id=self.record_id,
            measured_at=self.measured_at or champion.measured_at,
        )  # fmt: skip


@dataclass(frozen=True)
class Published:
    """One problem's published result.

    Attributes:
        champion: The champion, as from a store. The measurements hold quantiles of the samples, and their
            ``time_s`` and ``noise`` are those of all samples.
        speedup_low: Lower end of the interval of the champion's speed-up over the library; 0 without one.
        speedup_high: Upper end of that interval.
        runners_up: Other configs, fastest first, without duplicates or the champion.
    """

    champion: Champion
    speedup_low: float
    speedup_high: float
    runners_up: tuple[RunnerUp, ...]


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


def place(champion: Champion) -> tuple[Any, ...]:
    """Returns what an entry is unique for, in the order in which a file lists entries."""
    problem, device = champion.record.problem, champion.record.device
    shape = tuple(value for _, value in problem.shape)
    return (
        problem.operation, problem.arithmetic, problem.layout, shape, champion.record.regime, device.kind,
        device.name,
    )  # fmt: skip


def rounded(value: Any) -> Any:
    """Rounds measured numbers, also within an object, to the published digits; returns the rest unchanged."""
    if isinstance(value, Mapping):
        return {name: rounded(each) for name, each in value.items()}
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def slug(name: str) -> str:
    """Converts a name for folders and files: small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-")


def _key_in(shared: dict[str, Mapping[str, Any]], data: Mapping[str, Any]) -> str:
    """Returns the short key under which entries share a value, which is written once."""
    key = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:8]
    shared[key] = data
    return key


def text_of(operation: str, entries: Sequence[Published]) -> str:
    """Returns the text of an operation's entries on one device; equal entries make equal text."""
    devices: dict[str, Mapping[str, Any]] = {}
    versions: dict[str, Mapping[str, Any]] = {}
    ordered = sorted(entries, key=lambda each: place(each.champion))
    blocks = [_block(_entry_json(each, devices, versions)) for each in ordered]
    parts = [
        '"about": "Reviewed results; written by `tuner records publish`, explained in docs/records.md"',
        f'"format": {FORMAT}',
        f'"operation": {json.dumps(operation)}',
        f'"devices": {_lines(devices)}',
        f'"versions": {_lines(versions)}',
        f"{ENTRIES}\n" + ",\n".join(blocks) + "\n  ]",
    ]
    return "{\n  " + ",\n  ".join(parts) + "\n}\n"


def _lines(told: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [f"    {json.dumps(key)}: {json.dumps(told[key])}" for key in sorted(told)]
    return "{\n" + ",\n".join(rows) + "\n  }"


def _block(entry: Mapping[str, Any]) -> str:
    rows = []
    for key, value in entry.items():
        text = json.dumps(value)
        if key == "runners_up" and value:
            text = "[\n" + ",\n".join(f"        {json.dumps(each)}" for each in value) + "\n      ]"
        rows.append(f"      {json.dumps(key)}: {text}")
    return "    {\n" + ",\n".join(rows) + "\n    }"


def _entry_json(entry: Published, devices: dict[str, Any], versions: dict[str, Any]) -> dict[str, Any]:
    champion, record = entry.champion, entry.champion.record
    problem = record.problem
    library = champion.baseline
    return {
        "problem": {"shape": problem.dims, "dtype": problem.arithmetic, "layout": problem.layout},
        "regime": record.regime,
        "device": _key_in(devices, replace(record.device, uuid="").to_json()),
        **_measured_json(record, versions),
        "baseline": _measured_json(library, versions) if library else None,
        "speedup": rounded(
            {"ratio": champion.speedup, "low": entry.speedup_low, "high": entry.speedup_high}
        ),
        "verdict": champion.verdict,
        "trials": dict(champion.trials),
        "champion_id": champion.id,
        "crowned_at": champion.crowned_at,
        "runners_up": [_runner_up_json(each) for each in entry.runners_up],
    }  # fmt: skip


def _runner_up_json(runner_up: RunnerUp) -> dict[str, Any]:
    told = codec.to_json(runner_up)
    measured = rounded({name: value for name, value in told.items() if name != "config"})
    return {
        name: value
        for name, value in (told | measured).items()
        if value not in ("", None, {}) or name == "config"
    }


def _runner_up(told: Mapping[str, Any]) -> RunnerUp:
    runner_up = codec.from_json(RunnerUp, told)
    return replace(runner_up, source_hash=latest_hash(runner_up.source_hash))


def _measured_json(record: Record, versions: dict[str, Any]) -> dict[str, Any]:
    measurement, time_s = record.measurement, rounded(record.measurement.time_s or 0.0)
    work = {name: value / time_s if time_s else 0.0 for name, value in record.work.items()}
    told = measurement.to_json()
    return {
        "kernel": record.kernel,
        "config": dict(record.config),
        "time_s": time_s,
        "noise": rounded(measurement.noise),
        "tflops": rounded(work.get("flops", 0.0) / 1e12),
        "gbps": rounded(work.get("bytes", 0.0) / 1e9),
        "samples": _samples_json(measurement),
        "work": dict(record.work),
        "error": rounded(told["error"]),
        "compiled": told["compiled"],
        "circumstances": rounded(told["circumstances"]),
        "source_hash": record.source_hash,
        "versions": _key_in(versions, dict(record.versions)),
        "record_id": record.id,
        "measured_at": record.measured_at,
    }


def _samples_json(measurement: Measurement) -> dict[str, Any]:
    ordered = sorted(measurement.samples_s)
    if isinstance(measurement, SummarisedMeasurement):
        return {"count": measurement.samples_count, "quantiles_s": ordered}
    picked = [ordered[round(share * (len(ordered) - 1))] for share in QUANTILES] if ordered else []
    return {"count": len(ordered), "quantiles_s": [rounded(value) for value in picked]}


def entries_of(data: Mapping[str, Any]) -> tuple[Published, ...]:
    """Returns the entries of a parsed file.

    Raises:
        KeyError, TypeError, ValueError: It is not of this form.
    """
    devices = {key: DeviceInfo.from_json(told) for key, told in data["devices"].items()}
    found = []
    for told in data["entries"]:
        problem = told["problem"] | {"shape": told["problem"]["shape"].items()}
        of = ProblemKey.from_json(problem | {"operation": data["operation"]})
        where, regime = devices[told["device"]], told["regime"]
        record = _record_of(told, data["versions"], of, where, regime, Role.FINAL)
        library = told["baseline"]
        baseline = _record_of(library, data["versions"], of, where, regime, Role.BASELINE) if library else None
        speedup = told["speedup"]
        champion = Champion(
            record, baseline, speedup["ratio"], told["verdict"], told["trials"], id=told["champion_id"],
            crowned_at=told["crowned_at"],
        )  # fmt: skip
        runners_up = tuple(_runner_up(each) for each in told["runners_up"])
        found.append(Published(champion, speedup["low"], speedup["high"], runners_up))
    return tuple(found)


def _record_of(
    told: Mapping[str, Any], versions: Mapping[str, Any], problem: ProblemKey, device: DeviceInfo, regime: str,
    role: Role,
) -> Record:  # fmt: skip
    samples = told["samples"]
    measured = {
        "outcome": "MEASURED", "samples_s": samples["quantiles_s"], "samples_count": samples["count"],
        "published_time_s": told["time_s"], "published_noise": told["noise"],
    }  # fmt: skip
    measurement = codec.from_json(SummarisedMeasurement, {**told, **measured})
    return Record(
        problem, device, regime, role, told["kernel"], told["config"], latest_hash(told["source_hash"]),
        measurement, told["work"], versions[told["versions"]], id=told["record_id"],
        measured_at=told["measured_at"],
    )  # fmt: skip


def standing(published: Iterable[Published], store: Reader | None) -> list[Published]:
    """Returns results whose champion and records still count in a database, with such runners-up.

    Args:
        published: Results.
        store: The database; if None, nothing is retracted.
    """
    found = list(published)
    if store is None or not found:
        return found
    from tuner.store import retracting

    named = {each for result in found for each in _ids(result)}
    beside = {each.record_id for result in found for each in result.runners_up if each.record_id}
    gone = retracting.retracted(store, named | beside)
    return [
        replace(each, runners_up=tuple(one for one in each.runners_up if one.record_id not in gone))
        for each in found
        if not any(name in gone for name in _ids(each))
    ]


def _ids(published: Published) -> list[str]:
    champion = published.champion
    return [champion.id, champion.record.id, *([champion.baseline.id] if champion.baseline else [])]
