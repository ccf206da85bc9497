"""Everything that is kept as lines of JSON, and back. Reading returns exactly what was written.

Each line is self-contained: a champion's line includes its records. So files of lines can be joined, split and
sorted. NaN and infinities, which JSON cannot express, are texts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.errors import InputError
from tuner.results.crowns import Act, Crown
from tuner.results.measurement import CompileReport, Error, Measurement, Outcome
from tuner.results.record import Champion, Pair, ProblemKey, Record, Retraction, Role
from tuner.results.survey import Kept, SurveyPart
from tuner.store import rows, surveys
from tuner.version import __version__

#: Version of the line format; files of a higher version are refused. The second adds retractions,
#: the third parts of surveys, the fourth the crown log. A file is marked with one only if it has any, so that
#: older programs can read all other files.
FORMAT, WITH_SURVEYS, WITH_RETRACTIONS, PLAIN = 4, 3, 2, 1


def header(form: int = PLAIN, **more: str) -> str:
    """The first line of a file of a form."""
    return _line({"tile_tuner": "records", "format": form, "made_by": __version__, **more})


def line_of(told: Kept) -> str:
    """Returns a record, champion or retraction as a line, without the newline."""
    if isinstance(told, Retraction):
        return _line({"retraction": rows.retraction_row(told)})
    if isinstance(told, Record):
        return _line({"record": _record_json(told)})
    if isinstance(told, Crown):
        return _line({"crown": _crown_json(told)})
    if isinstance(told, SurveyPart):
        return _line({"survey": _survey_json(told)})
    return _line({"champion": _champion_json(told)})


def parsed(line: str) -> Kept | None:
    """Reads a line; None for a header.

    Raises:
        ValueError: The line is invalid; the message says why.
    """
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    try:
        if "record" in data:
            return _record_of(data["record"])
        if "champion" in data:
            return _champion_of(data["champion"])
        if "crown" in data:
            return _crown_of(data["crown"])
        if "survey" in data:
            return _survey_of(data["survey"])
        if "retraction" in data:
            told = data["retraction"]
            return rows.retraction_of({name: _text(told[name]) for name in ("id", "of", "reason", "made_at")})
        written = data["format"] if data["tile_tuner"] == "records" else 0
    except KeyError as error:
        raise ValueError(f"it lacks {error}") from None
    except (TypeError, AttributeError, ValueError, IndexError, OverflowError, InputError) as error:
        raise ValueError(f"it is no record: {error}") from None
    if written > FORMAT:
        raise ValueError(f"it begins a file of form {written}, and this version knows forms up to {FORMAT}")
    return None


def _line(data: Any) -> str:
    try:
        return json.dumps(data, separators=(",", ":"), default=_plain, allow_nan=False)
    except ValueError:
        return json.dumps(_named(data), separators=(",", ":"), default=_plain)


def _plain(scalar: Any) -> Any:
    """NumPy's scalars become Python's."""
    return scalar.item()


def _named(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    if isinstance(data, Mapping):
        return {key: _named(value) for key, value in data.items()}
    return [_named(value) for value in data] if isinstance(data, list | tuple) else data


def _record_json(record: Record) -> dict[str, Any]:
    measurement, problem = record.measurement, record.problem
    told: dict[str, Any] = {
        "outcome": measurement.outcome.value,
        "reason": measurement.reason,
        "samples_s": measurement.samples_s,
        "error": dict(vars(measurement.error)) if measurement.error else None,
        "compiled": dict(vars(measurement.compiled)) if measurement.compiled else None,
        "stages_s": dict(measurement.stages_s),
        "circumstances": dict(measurement.circumstances),
    }
    return {
        "id": rows.checked_id(record.id),
        "problem": {
            "operation": problem.operation, "shape": problem.shape, "dtype": problem.arithmetic,
            "layout": problem.layout,
        },
        "device": dict(vars(record.device)),
        "regime": record.regime,
        "role": record.role.value,
        "kernel": record.kernel,
        "config": dict(record.config),
        "source_hash": record.source_hash,
        "measurement": told,
        "work": dict(record.work),
        "versions": dict(record.versions),
        "study": record.study,
        "session": record.session,
        "origin": record.origin,
        "measured_at": record.measured_at,
    }  # fmt: skip


def _record_of(data: Mapping[str, Any]) -> Record:
    problem = data["problem"]
    shape = tuple((_text(name), int(size)) for name, size in problem["shape"])
    return Record(
        problem=ProblemKey.stored(
            _text(problem["operation"]), shape, _text(problem["dtype"]), _text(problem["layout"])
        ),
        device=DeviceInfo.from_json(data["device"]),
        regime=_text(data["regime"]),
        role=Role(data["role"]),
        kernel=_text(data["kernel"]),
        config=_object(data["config"]),
        source_hash=_text(data["source_hash"]),
        measurement=_measurement_of(data["measurement"]),
        work=_numbers(data["work"]),
        versions={name: _text(value) for name, value in data["versions"].items()},
        study=_text(data["study"]),
        session=_text(data["session"]),
        origin=_text(data["origin"]),
        id=rows.checked_id(data["id"]),
        measured_at=_text(data["measured_at"]),
    )


def _measurement_of(data: Mapping[str, Any]) -> Measurement:
    error, compiled = data["error"], data["compiled"]
    return Measurement(
        outcome=Outcome(data["outcome"]),
        reason=_text(data["reason"]),
        samples_s=tuple(float(each) for each in data["samples_s"]),
        error=Error(**_numbers(error)) if error else None,
        compiled=CompileReport(**compiled) if compiled else None,
        stages_s=_numbers(data["stages_s"]),
        circumstances=_numbers(data["circumstances"]),
    )


def _champion_json(champion: Champion) -> dict[str, Any]:
    return {
        "id": rows.checked_id(champion.id),
        "record": _record_json(champion.record),
        "baseline": _record_json(champion.baseline) if champion.baseline else None,
        "speedup": champion.speedup,
        "verdict": champion.verdict,
        "trials": dict(champion.trials),
        "pairs": [pair.to_json() for pair in champion.pairs],
        "crowned_at": champion.crowned_at,
    }


def _champion_of(data: Mapping[str, Any]) -> Champion:
    return Champion(
        record=_record_of(data["record"]),
        baseline=_record_of(data["baseline"]) if data["baseline"] else None,
        speedup=float(data["speedup"]),
        verdict=_text(data["verdict"]),
        trials={name: int(count) for name, count in data["trials"].items()},
        pairs=tuple(Pair.from_json(each) for each in data.get("pairs", ())),
        id=rows.checked_id(data["id"]),
        crowned_at=_text(data["crowned_at"]),
    )


def _survey_json(part: SurveyPart) -> dict[str, Any]:
    return {
        "id": rows.checked_id(part.id),
        "device": dict(vars(part.device)),
        "operation": part.operation,
        "regime": part.regime,
        **surveys.columns_of(part),
        "versions": dict(part.versions),
        "study": part.study,
        "session": part.session,
        "measured_at": part.measured_at,
    }


def _survey_of(data: Mapping[str, Any]) -> SurveyPart:
    names = "operation", "regime", "study", "session", "measured_at"
    named = {"id": rows.checked_id(data["id"])} | {name: _text(data[name]) for name in names}
    versions = {name: _text(value) for name, value in data["versions"].items()}
    return surveys.from_columns(data, DeviceInfo.from_json(data["device"]), versions, named)


def _crown_json(crown: Crown) -> dict[str, Any]:
    problem = crown.problem
    key = None if problem is None else [problem.operation, problem.shape, problem.arithmetic, problem.layout]
    return {**rows.crown_row(crown), "problem": key}


def _crown_of(data: Mapping[str, Any]) -> Crown:
    problem = None
    if data["problem"] is not None:
        operation, shape, arithmetic, layout = data["problem"]
        dims = tuple((_text(name), int(size)) for name, size in shape)
        problem = ProblemKey.stored(_text(operation), dims, _text(arithmetic), _text(layout))
    names = ("kind", "device", "regime", "champion", "who", "why", "id", "made_at")
    told = {name: _text(data[name]) for name in names} | {"id": rows.checked_id(data["id"])}
    return Crown(Act(data["act"]), problem, **told)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text was expected, got {value!r}")
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"an object was expected, got {value!r}")
    return value


def _numbers(data: Mapping[str, Any]) -> dict[str, Any]:
    """Converts numbers that were written as texts back; leaves others unchanged."""
    return {name: float(value) if isinstance(value, str) else value for name, value in data.items()}
