"""Records and champions as rows, and back. Reading returns exactly what was written, samples bit for bit."""

from __future__ import annotations

import functools
import hashlib
import json
import struct
import uuid
import zlib
from collections.abc import Mapping
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.errors import InputError
from tuner.results.crowns import Act, Crown
from tuner.results.equivalence import latest_hash
from tuner.results.measurement import CompileReport, Error, Measurement, Outcome
from tuner.results.record import Champion, Pair, ProblemKey, Record, Retraction, Role
from tuner.results.survey import SurveyPart

#: Columns of a record joined with its problem, device, kernel and run.
RECORD = (
    "id", "regime", "role", "outcome", "time_s", "config", "samples", "work", "error", "compiled", "stages",
    "circumstances", "reason", "measured_at", "operation", "shape", "dtype", "layout", "info", "kernel_name",
    "source_hash", "origin", "study", "session", "versions",
)  # fmt: skip
#: Columns of a champion, with the ids of the records that it names.
CHAMPION = (
    "id", "regime", "speedup", "verdict", "trials", "pairs", "crowned_at", "record_id", "baseline_id",
)  # fmt: skip
#: Columns of a part of a survey joined with its device and run.
SURVEY = (
    "id", "operation", "regime", "timings", "data", "measured_at", "info", "study", "session", "versions",
)  # fmt: skip
#: Columns of a retraction, and of what is kept twice.
RETRACTION = ("id", "of", "reason", "made_at")
#: Columns of an entry of the crown log, joined with its problem.
CROWN = (
    "id", "act", "operation", "shape", "dtype", "layout", "kind", "device", "regime", "champion", "who", "why",
    "made_at",
)  # fmt: skip
#: Columns of a sentinel and of an event of a night.
SENTINEL = ("id", "night", "process", "regime", "data", "measured_at")
NIGHT = ("id", "night", "event", "data", "at")
SHARED = ("kind", "of", "said")


def checksum(row: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """The sum of a row's columns: 64 bits, signed, as a database holds them."""
    digest = hashlib.blake2b(digest_size=8)
    for name in names:
        value = row[name]
        if value is None:
            digest.update(b"-")
            continue
        told = value if isinstance(value, bytes) else _text(value).encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(told))
        digest.update(told)
    return int.from_bytes(digest.digest(), "little", signed=True)


def _text(value: Any) -> str:
    return repr(float(value)) if isinstance(value, float | int) else str(value)


#: Kind of row that records share -> its columns without the number, as in its copy.
SHARED_COLUMNS = {
    "problem": ("operation", "shape", "dtype", "layout"),
    "device": ("digest", "kind", "name", "uuid", "info"),
    "kernel": ("name", "source_hash", "origin"),
    "run": ("digest", "study", "session", "versions"),
}
#: Columns of a joined record that are read as texts.
_TEXTS = (
    "id", "regime", "reason", "measured_at", "operation", "dtype", "layout", "kernel_name", "source_hash",
    "study", "session", "origin",
)  # fmt: skip
#: First byte of stored samples: how the float64 little-endian values behind it are packed.
_PLAIN, _PLANES = b"\x00", b"\x01"


def pack_samples(samples_s: tuple[float, ...]) -> bytes:
    """Packs times in seconds without loss.

    Times of one launch differ only in their low bytes. All first bytes are put together, then all second
    bytes and so on, which lets zlib find the equal ones; few or odd samples are kept as they are.
    """
    plain = struct.pack(f"<{len(samples_s)}d", *samples_s)
    planes = zlib.compress(b"".join(plain[place::8] for place in range(8)), 6)
    return _PLANES + planes if len(planes) < len(plain) else _PLAIN + plain


def unpack_samples(packed: bytes) -> tuple[float, ...]:
    """Reads the output of `pack_samples`.

    Raises:
        ValueError: The bytes are damaged.
    """
    if packed[:1] == _PLAIN:
        plain = packed[1:]
    elif packed[:1] == _PLANES:
        try:
            planes = zlib.decompress(packed[1:])
        except zlib.error as error:
            raise ValueError(f"stored samples are damaged: {error}") from error
        count = len(planes) // 8
        woven = bytearray(len(planes))
        for place in range(8):
            woven[place::8] = planes[place * count : (place + 1) * count]
        plain = bytes(woven)
    else:
        raise ValueError(f"stored samples start with an unknown byte {packed[:1]!r}")
    return struct.unpack(f"<{len(plain) // 8}d", plain)


def text_of(data: Any, *, ordered: bool = True) -> str:
    """Returns JSON text, the same for equal data unless the order is kept; converts NumPy's scalars."""
    return json.dumps(data, sort_keys=ordered, separators=(",", ":"), default=lambda scalar: scalar.item())


def digest_of(*parts: str) -> str:
    """Returns the hash of a row's content, which names it."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def checked_id(text: str) -> str:
    """Returns the id in the canonical spelling of UUIDs.

    Raises:
        InputError: It is not a UUID.
    """
    try:
        return str(uuid.UUID(text))
    except (ValueError, AttributeError, TypeError):
        raise InputError(f"an id is a UUID, got {text!r}; take it from `tuner.results.record.new_id`") from None


def problem_row(problem: ProblemKey) -> dict[str, str]:
    """Columns of a problem; its precision stands behind the dtype."""
    shape = text_of([list(pair) for pair in problem.shape])
    return {
        "operation": problem.operation, "shape": shape, "dtype": problem.arithmetic, "layout": problem.layout,
    }  # fmt: skip


def problem_of(row: Mapping[str, Any]) -> ProblemKey:
    """The problem of a row."""
    shape = tuple((name, int(value)) for name, value in json.loads(row["shape"]))
    return ProblemKey.stored(row["operation"], shape, row["dtype"], row["layout"])


@functools.lru_cache(maxsize=256)
def device_row(device: DeviceInfo) -> Mapping[str, str]:
    """Columns of a device; a change of any field, e.g. the driver's version, makes another row."""
    info = text_of(device.to_json())
    name = {"kind": device.kind, "name": device.name, "uuid": device.uuid}
    return {"digest": digest_of(info), "info": info, **name}


def device_of(info: str) -> DeviceInfo:
    """The device of a row's ``info``."""
    return DeviceInfo.from_json(json.loads(info))


def kernel_row(record: Record) -> dict[str, str]:
    """Columns of a record's kernel."""
    return {"name": record.kernel, "source_hash": record.source_hash, "origin": record.origin}


def run_row(record: Record | SurveyPart) -> dict[str, str]:
    """Columns that the records of a run, or the parts of a survey, share."""
    versions = text_of(dict(record.versions))
    digest = digest_of(record.study, record.session, versions)
    return {"digest": digest, "study": record.study, "session": record.session, "versions": versions}


def record_row(record: Record) -> dict[str, Any]:
    """Columns of a record without its references."""
    measurement = record.measurement
    return {
        "id": checked_id(record.id),
        "regime": record.regime,
        "role": record.role.value,
        "outcome": measurement.outcome.value,
        "time_s": measurement.time_s,
        "config": text_of(dict(record.config), ordered=False),
        "samples": pack_samples(measurement.samples_s),
        "work": text_of(dict(record.work)),
        "error": text_of(vars(measurement.error)) if measurement.error else None,
        "compiled": text_of(vars(measurement.compiled)) if measurement.compiled else None,
        "stages": text_of(dict(measurement.stages_s)),
        "circumstances": text_of(dict(measurement.circumstances)),
        "reason": storable(measurement.reason),
        "measured_at": record.measured_at,
    }


def storable(text: str) -> str:
    """Returns a text that every database accepts; a compiler's or author's text may hold anything.

    PostgreSQL allows no NUL in texts, and neither database allows unpaired surrogates.
    """
    return text.replace("\0", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode("utf-8")


def record_of(row: Mapping[str, Any], device: DeviceInfo) -> Record:
    """Returns the record of a row that is joined with its problem, kernel and run.

    Raises:
        ValueError: It is damaged.
    """
    _check_texts(row, _TEXTS)
    measurement = Measurement(
        outcome=Outcome(row["outcome"]),
        reason=row["reason"],
        samples_s=unpack_samples(row["samples"]),
        error=Error(**json.loads(row["error"])) if row["error"] else None,
        compiled=CompileReport(**json.loads(row["compiled"])) if row["compiled"] else None,
        stages_s=json.loads(row["stages"]),
        circumstances=json.loads(row["circumstances"]),
    )
    return Record(
        problem=problem_of(row),
        device=device,
        regime=row["regime"],
        role=Role(row["role"]),
        kernel=row["kernel_name"],
        config=json.loads(row["config"]),
        source_hash=latest_hash(row["source_hash"]),
        measurement=measurement,
        work=json.loads(row["work"]),
        versions=json.loads(row["versions"]),
        study=row["study"],
        session=row["session"],
        origin=row["origin"],
        id=row["id"],
        measured_at=row["measured_at"],
    )


def _check_texts(row: Mapping[str, Any], names: tuple[str, ...]) -> None:
    """Checks types of texts: SQLite returns any stored value, whatever the column's type."""
    for name in names:
        if type(row[name]) is not str:
            raise ValueError(f"{name} is no text: {row[name]!r}")


def champion_row(champion: Champion) -> dict[str, Any]:
    """Columns of a champion without its references."""
    return {
        "id": checked_id(champion.id),
        "regime": champion.record.regime,
        "speedup": champion.speedup,
        "verdict": champion.verdict,
        "trials": text_of(dict(champion.trials)),
        "pairs": text_of([pair.to_json() for pair in champion.pairs]),
        "crowned_at": champion.crowned_at,
    }


def champion_of(told: Mapping[str, Any], record: Record, baseline: Record | None) -> Champion:
    """The champion of a row.

    Raises:
        ValueError: It is damaged.
    """
    _check_texts(told, ("id", "verdict", "crowned_at"))
    return Champion(
        record=record,
        baseline=baseline,
        speedup=told["speedup"],
        verdict=told["verdict"],
        trials=json.loads(told["trials"]),
        pairs=tuple(Pair.from_json(each) for each in json.loads(told["pairs"] or "[]")),
        id=told["id"],
        crowned_at=told["crowned_at"],
    )


def retraction_row(retraction: Retraction) -> dict[str, str]:
    """Columns of a retraction."""
    return {
        "id": checked_id(retraction.id), "of": checked_id(retraction.of), "reason": storable(retraction.reason),
        "made_at": retraction.made_at,
    }  # fmt: skip


def retraction_of(row: Mapping[str, Any]) -> Retraction:
    """The retraction of a row."""
    return Retraction(checked_id(row["of"]), row["reason"], checked_id(row["id"]), row["made_at"])


def crown_row(crown: Crown) -> dict[str, str]:
    """Columns of an entry of the crown log but for its problem."""
    return {
        "id": checked_id(crown.id), "act": crown.act.value, "kind": crown.kind,
        "device": storable(crown.device), "regime": crown.regime,
        "champion": crown.champion and checked_id(crown.champion), "who": storable(crown.who),
        "why": storable(crown.why), "made_at": crown.made_at,
    }  # fmt: skip


def crown_of(row: Mapping[str, Any]) -> Crown:
    """The entry of a row that is joined with its problem, if it has one."""
    problem = problem_of(row) if row["operation"] is not None else None
    names = ("kind", "device", "regime", "champion", "who", "why", "id", "made_at")
    return Crown(Act(row["act"]), problem, **{name: row[name] for name in names})


def shared_row(kind: str, number: int, said: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of the copy of a row that records share; `said` is the row, in the order of its columns."""
    told = {"kind": kind, "of": number, "said": text_of([said[name] for name in SHARED_COLUMNS[kind]])}
    return told | {"checksum": checksum(told, SHARED)}
