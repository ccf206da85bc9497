"""Parts of surveys as rows and as lines, and back. What is written is read back equal.

A part is one row: its problems, configs and timings are one JSON text of columns, which zlib packs. A damaged
row costs its own part, and needs no other but its device's and its run's.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.results.measurement import Outcome
from tuner.results.record import ProblemKey
from tuner.results.survey import LIBRARY, SurveyConfig, SurveyPart, Timing
from tuner.store import rows

#: A part unpacks to at most so many bytes: a damaged row must not fill the memory.
MOST_BYTES = 1 << 26
#: Outcomes by their numbers in a part. New ones are added at the end.
_OUTCOMES = (
    Outcome.MEASURED, Outcome.PRUNED, Outcome.INVALID, Outcome.COMPILE_FAILED, Outcome.LAUNCH_FAILED,
    Outcome.WRONG_RESULT, Outcome.INACCURATE, Outcome.TIMED_OUT, Outcome.CRASHED,
)  # fmt: skip


def row_of(part: SurveyPart) -> dict[str, Any]:
    """Columns of a part but for its references."""
    text = rows.text_of(columns_of(part), ordered=False)
    return {
        "id": rows.checked_id(part.id),
        "operation": part.operation,
        "regime": part.regime,
        "timings": len(part.timings),
        "data": zlib.compress(text.encode(), 9),
        "measured_at": part.measured_at,
    }


def part_of(row: Mapping[str, Any], device: DeviceInfo) -> SurveyPart:
    """The part of a row that is joined with its run.

    Raises:
        ValueError: It is damaged.
    """
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(row["data"], MOST_BYTES)
    except zlib.error as error:
        raise ValueError(f"a part of a survey is damaged: {error}") from error
    named = {name: str(row[name]) for name in ("id", "operation", "regime", "study", "session", "measured_at")}
    return from_columns(json.loads(text), device, json.loads(row["versions"]), named)


def columns_of(part: SurveyPart) -> dict[str, Any]:
    """What a part times, as columns of plain data."""
    values = [list(column) for column in zip(*part.timings, strict=True)] or [[] for _ in Timing._fields]
    problem, config, outcome, time_s, noise, reason = values
    return {
        "problems": [[[list(pair) for pair in each.shape], each.dtype, each.layout] for each in part.problems],
        "configs": [
            [each.kernel, each.source_hash, each.origin, each.registers, dict(each.config)]
            for each in part.configs
        ],
        "problem": problem,
        "config": config,
        "outcome": [_OUTCOMES.index(each) for each in outcome],
        "time_s": time_s,
        "noise": noise,
        "reasons": {str(at): rows.storable(text) for at, text in enumerate(reason) if text},
    }


def from_columns(
    data: Mapping[str, Any], device: DeviceInfo, versions: Mapping[str, str], named: Mapping[str, str]
) -> SurveyPart:
    """The part that `columns_of` told of.

    Raises:
        ValueError: It refers to a problem or config that it does not have.
    """
    reasons = {int(at): str(text) for at, text in data["reasons"].items()}
    columns = [data[name] for name in ("problem", "config", "outcome", "time_s", "noise")]
    timings = tuple(
        Timing(int(problem), int(config), _OUTCOMES[outcome], float(time_s), float(noise), reasons.get(at, ""))
        for at, (problem, config, outcome, time_s, noise) in enumerate(zip(*columns, strict=True))
    )
    problems = tuple(
        ProblemKey(named["operation"], tuple((str(dim), int(size)) for dim, size in shape), dtype, layout)
        for shape, dtype, layout in data["problems"]
    )
    configs = tuple(
        SurveyConfig(str(kernel), dict(config), str(source), str(origin), int(registers))
        for kernel, source, origin, registers, config in data["configs"]
    )
    known = range(len(problems)), range(LIBRARY, len(configs))
    if any(each.problem not in known[0] or each.config not in known[1] for each in timings):
        raise ValueError("a timing is of a problem and a config of its part, got another number")
    return SurveyPart(
        device, named["operation"], named["regime"], problems, configs, timings, dict(versions), named["study"],
        named["session"], named["id"], named["measured_at"],
    )  # fmt: skip
