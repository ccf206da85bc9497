"""A plan as read, and times of day in plans."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.declare.catalogue import Catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import Operation, Problem
from tuner.devices.detect import kinds as device_kinds
from tuner.errors import InputError
from tuner.results.objectives import TIME
from tuner.results.record import Wanted

if TYPE_CHECKING:
    from tuner.night.plan_schema import SurveyTable, WatchTable

#: A path in a parsed document: keys of tables, and numbers of elements of arrays.
KeyPath = tuple[str | int, ...]
#: Seconds for a problem if the plan gives neither seconds nor trials.
DEFAULT_SECONDS = 60.0
_CLOCK = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")


@dataclass(frozen=True)
class PlanItem:
    """One problem to tune.

    Attributes:
        problem: What to compute: operation, shape, dtype, layout, precision.
        catalogue: Where its kernels are found.
        file: The user's own file that declares them, absolute; None for built-in ones.
        regime: How times are taken.
        kernels: Names of the kernels that compete; all if empty.
        seconds: Budget of its study in seconds; None without that limit.
        trials: Budget of its study in trials; None without that limit.
        objectives: Objectives to minimise.
        error_limit: Largest error of a champion, as a multiple of the library's; None for no limit.
        wanted: How often it was asked for without an exact answer, where that is why it is tuned.
        devices: Kinds or models of device on which it is tuned; empty for any.
    """

    problem: Problem
    catalogue: Catalogue = field(compare=False, repr=False)
    file: Path | None = None
    regime: str = "cold"
    kernels: tuple[str, ...] = ()
    seconds: float | None = DEFAULT_SECONDS
    trials: int | None = None
    objectives: tuple[str, ...] = TIME
    error_limit: float | None = None
    wanted: Wanted | None = field(default=None, compare=False)
    devices: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for items of the same work: everything but the budgets."""
        problem = self.problem
        words = problem.dtype, problem.layout, problem.precision, problem.epilogue
        what = (problem.operation.name, self.file, problem.shape, *words)
        return *what, self.regime, self.kernels, self.objectives, self.error_limit, self.devices


@dataclass(frozen=True)
class SurveyItem:
    """A survey of a plan.

    Attributes:
        operation: What is surveyed.
        catalogue: Where its kernels are found.
        problems: Problems of one's own, which come first.
        table: Its other keys.
        regime: How time is taken; as usual on the device where empty.
    """

    operation: Operation
    catalogue: Catalogue = field(compare=False, repr=False)
    problems: tuple[Problem, ...]
    table: SurveyTable
    regime: str

    @property
    def seconds(self) -> float:
        """Its budget in each night."""
        return self.table.seconds


@dataclass(frozen=True)
class Plan:
    """A plan as read.

    Attributes:
        path: Its file, absolute.
        items: The problems in the plan's order, without duplicates.
        watch: What is timed before anything is tuned.
        device: Device on which all are tuned; empty for the default one.
        sampler: Name of the search strategy.
        until: Time of day to stop at, local; None without one.
        seconds: Budget of the whole run in seconds; None without one.
        surveys: Surveys, which come before the problems.
        wanted: How many of the problems that programs asked for are tuned as well.
        wanted_seconds: Budget of each of these in seconds; None without that limit.
        wanted_trials: Their budget in trials; None without that limit.
    """

    path: Path
    items: tuple[PlanItem, ...]
    watch: WatchTable
    device: str = ""
    sampler: str = "tile"
    until: time | None = None
    seconds: float | None = None
    surveys: tuple[SurveyItem, ...] = ()
    wanted: int = 0
    wanted_seconds: float | None = DEFAULT_SECONDS
    wanted_trials: int | None = None


def asks_for(names: Collection[str], info: DeviceInfo) -> bool:
    """True if a device is among those that are named by kind, model, or a pattern of the model.

    Args:
        names: ``cuda``, ``cpu``, ``NVIDIA H200``, ``*H200*``; none for any device. ``cuda:1`` stands for its
            kind, and a device whose times do not pass for any.
        info: The device.
    """
    kinds = {name.partition(":")[0].lower() for name in names}
    model = info.name.lower()
    named = any(fnmatch.fnmatchcase(model, name.lower()) for name in names)
    stand_ins = {name for name, kind in device_kinds().items() if not kind.times_pass}
    return not names or named or bool(kinds & {info.kind, *stand_ins})


def clock_time(text: str) -> time:
    """Reads ``HH:MM``.

    Raises:
        InputError: The text is not a time of day.
    """
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise InputError(f'a time of day is "HH:MM", 00:00 to 23:59, got {text!r}; give one such as 06:30')
    return time(int(match[1]), int(match[2]))


def seconds_until(clock: time, now: datetime) -> float:
    """Returns the seconds from `now` (local, without time zone) until a clock next shows this time.

    From a time to itself is a day. A night in which clocks change has its true length.
    """
    then = datetime.combine(now.date(), clock)
    if then <= now:
        then += timedelta(days=1)
    return then.timestamp() - now.timestamp()
