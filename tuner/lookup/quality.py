"""What answers cost: known problems are left out one at a time, asked for, and the answer's loss looked up.

The loss is a fraction of speed: 1 - (time of the best of champion and library) / (time of what was answered).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.lookup.answers import DEFAULT, NEAREST_SHAPE, UNMEASURED, Loss
from tuner.lookup.choice import choose
from tuner.lookup.device_similarity import alike
from tuner.lookup.disk_cache import recall, remember
from tuner.lookup.legality import default_among
from tuner.lookup.matrix import Column, Place
from tuner.lookup.snapshot import SubjectData

#: Problems that are left out for the loss of an answer, at the most; `tuner lookup-quality` asks for all.
CASES_ASKED = 20
#: Known losses below which no loss is told.
LEAST_CASES = 3


@dataclass(frozen=True)
class LeftOut:
    """A known problem that was left out and asked for.

    Attributes:
        place: Its number in the matrix.
        kernel: Kernel that was answered.
        config: Its config.
        source: Number of the place whose record counted most; None for a default.
        library: The library's name where it was answered.
        loss: Fraction of speed; None where what was answered has never been timed there.
    """

    place: int
    kernel: str
    config: Config
    source: int | None
    library: str
    loss: float | None


def leave_one_out(data: SubjectData, match: str, device: str = "", at_most: int | None = None) -> list[LeftOut]:
    """Leaves every problem that has a champion out, and asks for it.

    Args:
        data: What is known.
        match: The tier that is to answer.
        device: Only problems on the device of this name; on any when empty.
        at_most: So many problems, spread over all; every one when None.

    Returns:
        A case for each problem that the tier has an answer for.
    """
    numbers = [
        number
        for number, place in enumerate(data.matrix.places)
        if place.champion is not None and device in ("", place.device.name)
    ]
    if at_most is not None and len(numbers) > at_most:
        numbers = [numbers[at * len(numbers) // at_most] for at in range(at_most)]
    key = f"{match} {numbers}"
    if key not in data.kept:
        data.kept[key] = _recalled(data, key) or _evaluated(data, match, numbers, key)
    found: list[LeftOut] = data.kept[key]
    return found


def _evaluated(data: SubjectData, match: str, numbers: Sequence[int], key: str) -> list[LeftOut]:
    cases = [case for case in (_EVALUATE[match](data, number) for number in numbers) if case is not None]
    told = [
        (case.place, case.kernel, dict(case.config), case.source, case.library, case.loss) for case in cases
    ]
    remember(data.matrix, key, told)
    return cases


def _recalled(data: SubjectData, key: str) -> list[LeftOut]:
    """The cases as another process asked them; empty where none did."""
    return [
        LeftOut(place, kernel, Config(config), source, library, loss)
        for place, kernel, config, source, library, loss in recall(data.matrix, key) or ()
    ]


def _by_shape(data: SubjectData, number: int) -> LeftOut | None:
    places = data.matrix.places
    name = places[number].device.name
    return _elsewhere(data, number, lambda other: other != number and places[other].device.name == name)


def _by_device(data: SubjectData, number: int) -> LeftOut | None:
    places = data.matrix.places
    _, kin = alike(places[number].device, (place.device for place in places))
    names = {device.name for device in kin}
    return _elsewhere(data, number, lambda other: places[other].device.name in names)


def _elsewhere(data: SubjectData, number: int, fits: Callable[[int], bool]) -> LeftOut | None:
    place = data.matrix.places[number]
    choice = choose(data, place.problem, place.device, data.places(fits), left_out=number)
    if choice is None:
        return None
    library = place.library if choice.by_library else ""
    return _case(data, number, (choice.kernel, choice.config), library, choice.place)


def _by_default(data: SubjectData, number: int) -> LeftOut | None:
    """What a device would be answered of which nothing is known: the library, or the default without one."""
    place = data.matrix.places[number]
    found = default_among(list(data.matrix.kernels.values()), place.problem, place.device)
    return _case(data, number, (found[0].name, found[1]), place.library) if found else None


_EVALUATE: dict[str, Callable[[SubjectData, int], LeftOut | None]] = {
    NEAREST_SHAPE: _by_shape, "similar-device": _by_device, DEFAULT: _by_default,
}  # fmt: skip


def _case(data: SubjectData, number: int, column: Column, library: str, source: int | None = None) -> LeftOut:
    place = data.matrix.places[number]
    return LeftOut(number, *column, source, library, loss_at(place, None if library else column))


def unmeasured(cases: Sequence[LeftOut]) -> list[LeftOut]:
    """The cases whose answer has never been timed at its problem."""
    return [case for case in cases if case.loss is None and not case.library]


def loss_at(place: Place, column: Column | None) -> float | None:
    """What a config, or for None the library, costs at a known place; None where it was never timed there."""
    library_s = math.inf
    if place.champion is not None and place.speedup > 0:
        library_s = place.speedup * place.times[place.champion].time_s
    if column is None:
        time_s = library_s
    else:
        time = place.times.get(column)
        time_s = time.time_s if time else math.inf
    if math.isinf(time_s):
        return None
    return max(0.0, 1.0 - min(place.best_s, library_s) / time_s)


def expected_loss(data: SubjectData, match: str, problem: Problem, device: DeviceInfo) -> Loss:
    """What an answer of a tier is to be expected to cost: the losses of known problems, the near ones first.

    Args:
        data: What is known.
        match: The tier.
        problem: What was asked for.
        device: Where.
    """
    cases = leave_one_out(data, match, device.name if match == NEAREST_SHAPE else "", CASES_ASKED)
    measured = [case for case in cases if case.loss is not None]
    if len(measured) < LEAST_CASES or data.landscape is None:
        return Loss(UNMEASURED, len(measured), _too_few(len(measured), len(cases)))
    variances = data.landscape.variances(data.model(), problem, device)[[case.place for case in measured]]
    near = 1 / (variances + np.median(variances))
    losses = [case.loss or 0.0 for case in measured]
    expected = float(np.average(losses, weights=near))
    return Loss(expected, len(measured), f"{summary(cases)}; near ones count more")


def _too_few(measured: int, cases: int) -> str:
    return (
        f"not measured: of {cases} known problems that were left out and asked for, {measured} have a time of "
        f"what was answered, and {LEAST_CASES} are needed"
    )


def summary(cases: Sequence[LeftOut]) -> str:
    """Mean and worst of the cases, for people."""
    losses = [case.loss for case in cases if case.loss is not None]
    if not losses:
        return _too_few(0, len(cases))
    missing = len(cases) - len(losses)
    rest = f", {missing} more without a time" if missing else ""
    return (
        f"{len(losses)} known problems left out and asked for{rest}: "
        f"mean {statistics.fmean(losses):.1%}, worst {max(losses):.1%}"
    )
