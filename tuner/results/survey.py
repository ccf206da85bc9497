"""Surveys: times of many configs at many problems of one operation. Plain frozen data.

A record keeps all that is known of one trial. A survey makes some hundred timings a second, of which a model
needs little more than the time. So they are kept in parts: a part is what was timed in a few seconds, with its
problems and configs named once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tuner.declare.hardware import DeviceInfo
from tuner.results.codec import storable
from tuner.results.measurement import Outcome
from tuner.results.record import Champion, ProblemKey, Record, Retraction, checked_id, new_id, utc_now
from tuner.results.verdict import Crown

#: Number of the library among the configs of a part.
LIBRARY = -1
#: Outcomes by their numbers in the JSON of a part. New ones are added at the end.
_OUTCOMES = (
    Outcome.MEASURED, Outcome.PRUNED, Outcome.INVALID, Outcome.COMPILE_FAILED, Outcome.LAUNCH_FAILED,
    Outcome.WRONG_RESULT, Outcome.INACCURATE, Outcome.TIMED_OUT, Outcome.CRASHED,
    Outcome.NOT_REPEATABLE, Outcome.OTHER_BITS,
)  # fmt: skip
#: Fields of a timing that are numbers, each a column of the JSON of a part.
_NUMBERS = ("problem", "config", "time_s", "noise")
#: Fields of a part that are texts, in its JSON as they are.
_TEXTS = ("operation", "regime", "study", "session", "measured_at")


class Timing(NamedTuple):
    """One config, or the library, at one problem.

    Attributes:
        problem: Number of the problem in its part.
        config: Number of the config in its part, or `LIBRARY`.
        outcome: MEASURED; PRUNED if its first run was so slow that no other followed, which is its time; or why
            there is no time.
        time_s: Median of its samples in seconds; 0 if there is none.
        noise: Of the samples, relative; 0 for a single one.
        reason: Why there is no time.
    """

    problem: int
    config: int
    outcome: Outcome
    time_s: float = 0.0
    noise: float = 0.0
    reason: str = ""


class SurveyConfig(NamedTuple):
    """A config that a survey times, in the order in which its JSON has the fields.

    Attributes:
        kernel: Kernel's name.
        source_hash: `tuner.declare.kernel.Kernel.source_hash`.
        origin: File that declares the kernel, for a user's own; empty for built-in ones.
        registers: 32-bit registers of a thread by the compiler's report; 0 if it is unknown.
        config: Parameters and their values.
    """

    kernel: str
    source_hash: str
    origin: str
    registers: int
    config: Mapping[str, Any]


@dataclass(frozen=True)
class SurveyPart:
    """Timings that a survey made one after the other. Parts are only ever added.

    Attributes:
        device: Where.
        operation: Name of the operation of all problems.
        regime: How time was taken.
        problems: What the timings' numbers stand for.
        configs: The same of configs.
        timings: The timings, in the order made.
        versions: As in `tuner.results.record.Record`.
        study: Name of the survey.
        session: Id shared by the parts of one run.
        id: UUID.
        measured_at: When the part ended; ISO 8601, UTC.
    """

    device: DeviceInfo
    operation: str
    regime: str
    problems: tuple[ProblemKey, ...]
    configs: tuple[SurveyConfig, ...]
    timings: tuple[Timing, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    study: str = ""
    session: str = ""
    id: str = field(default_factory=new_id)
    measured_at: str = field(default_factory=utc_now)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON data; the timings are columns, which are shorter than rows."""
        return {
            **{name: storable(getattr(self, name)) for name in _TEXTS}, "id": checked_id(self.id),
            "device": self.device.to_json(), "versions": dict(self.versions),
            "problems": [[list(key.shape), key.arithmetic, key.layout] for key in self.problems],
            "configs": [[*config[:-1], dict(config.config)] for config in self.configs],
            **{name: [getattr(timing, name) for timing in self.timings] for name in _NUMBERS},
            "outcome": [_OUTCOMES.index(timing.outcome) for timing in self.timings],
            "reasons": {str(at): storable(of.reason) for at, of in enumerate(self.timings) if of.reason},
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SurveyPart:
        """Reads the output of `to_json`.

        Raises:
            ValueError: It refers to a problem or config that it does not have.
        """
        rows = zip(*(data[name] for name in (*_NUMBERS, "outcome")), strict=True)
        timings = tuple(
            Timing(
                int(problem), int(config), _OUTCOMES[outcome], float(time_s), float(noise),
                str(data["reasons"].get(str(at), "")),
            )
            for at, (problem, config, time_s, noise, outcome) in enumerate(rows)
        )  # fmt: skip
        operation = str(data["operation"])
        problems = tuple(
            ProblemKey.from_json(
                {"operation": operation, "shape": shape, "dtype": arithmetic, "layout": layout}
            )
            for shape, arithmetic, layout in data["problems"]
        )
        configs = tuple(
            SurveyConfig(str(kernel), str(source), str(origin), int(registers), dict(config))
            for kernel, source, origin, registers, config in data["configs"]
        )
        known = range(len(problems)), range(LIBRARY, len(configs))
        if any(timing.problem not in known[0] or timing.config not in known[1] for timing in timings):
            raise ValueError("a timing is of a problem and a config of its part, got another number")
        return cls(
            DeviceInfo.from_json(data["device"]), problems=problems, configs=configs, timings=timings,
            versions=dict(data["versions"]), id=checked_id(data["id"]),
            **{name: str(data[name]) for name in _TEXTS},
        )  # fmt: skip


Kept = Record | Champion | Retraction | SurveyPart | Crown
