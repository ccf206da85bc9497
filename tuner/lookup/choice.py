"""Chooses a config for a problem from what is known at other places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.hardware import DeviceInfo
from tuner.lookup.book import Page
from tuner.lookup.features import Floats
from tuner.lookup.known import Place, Time
from tuner.lookup.legality import Points, nearby
from tuner.problem import Problem
from tuner.space import Config

#: Configs of the best rank whose neighbours are tried where none is legal as it is.
REPAIRED = 24
#: Places that a reason names.
NAMED = 2


@dataclass(frozen=True)
class Choice:
    """A config chosen from other places.

    Attributes:
        kernel: Its kernel.
        config: Legal for the problem and device.
        column: Of the matrix; where the config was changed to be legal, of the one it was changed from.
        place: The place whose record counted most.
        slower: Log of time over the best config's that is expected.
        library: The library's; NaN where no place knows it.
        weights: Per place: how much it counted.
        changed: What was changed to make it legal; empty where nothing was.
    """

    kernel: str
    config: Config
    column: int
    place: int
    slower: float
    library: float
    weights: Floats
    changed: str = ""

    @property
    def by_library(self) -> bool:
        """Whether the library is expected to be faster."""
        return not math.isnan(self.library) and self.library < self.slower


def choose(
    page: Page,
    problem: Problem,
    device: DeviceInfo,
    places: Floats,
    *,
    kernel: str = "",
    left_out: int | None = None,
) -> Choice | None:
    """The best legal config by what the places say; None where they know none.

    Args:
        page: What is known.
        problem: What is to be computed.
        device: Where.
        places: Per place: 1 to ask it, 0 to leave it out.
        kernel: Only this kernel; any when empty.
        left_out: A place that nothing may be learnt from.
    """
    landscape = page.landscape
    if landscape is None or not places.any():
        return None
    model = page.model(left_out)
    places = landscape.nearest(model, problem, device, places)
    right, fast = landscape.legal(problem, device, kernel, landscape.known_at(places))
    for flags in (fast, right):
        columns = np.flatnonzero(flags)
        if len(columns):
            standing = landscape.standing(model, problem, device, places, columns)
            at = int(np.argmin(standing.order))
            column = int(columns[at])
            name, config = page.matrix.columns[column]
            place = _source(page, column, standing.weights)
            return Choice(
                name, config, column, place, float(standing.slower[at]), standing.library, standing.weights
            )
    return _repaired(page, problem, device, places, kernel, left_out)


def _source(page: Page, column: int, weights: Floats) -> int:
    """The place that counted most among those that know a config."""
    known = ~np.isnan(page.matrix.slower[:, column])
    return int(np.argmax(np.where(known, weights, -1.0)))


def _repaired(
    page: Page, problem: Problem, device: DeviceInfo, places: Floats, kernel: str, left_out: int | None
) -> Choice | None:
    """A legal config that differs in one parameter from one that would be good, were it legal."""
    landscape, matrix = page.landscape, page.matrix
    assert landscape is not None, "asked only where there are places"
    every = np.flatnonzero(landscape.known_at(places))
    wanted = [number for number in every if kernel in ("", matrix.columns[number][0])]
    if not wanted:
        return None
    standing = landscape.standing(page.model(left_out), problem, device, places, np.array(wanted))
    for at in np.argsort(standing.slower, kind="stable")[:REPAIRED]:
        column = int(wanted[int(at)])
        name, config = matrix.columns[column]
        declared = matrix.kernels[name]
        if any(each.name not in config or config[each.name] not in each.values for each in declared.parameters):
            continue
        others = nearby(declared, config)
        for flags in reversed(Points(declared, others).flags(problem, device)):
            if flags.any():
                changed = others[int(np.argmax(flags))]
                what = ", ".join(
                    f"{key}={changed[key]} for {key}={config[key]}"
                    for key in changed
                    if changed[key] != config[key]
                )
                place = _source(page, column, standing.weights)
                slower = float(standing.slower[at])
                return Choice(name, changed, column, place, slower, standing.library, standing.weights, what)
    return None


def reasons_for(page: Page, choice: Choice) -> list[str]:
    """Why a config was chosen: where it was timed, and what it was changed to."""
    name, _ = page.matrix.columns[choice.column]
    order = np.argsort(-choice.weights, kind="stable")
    told = [
        f"{_percent(page.matrix.slower[number, choice.column])} at {_named(page.matrix.places[number])}"
        for number in order
        if choice.weights[number] > 0 and not math.isnan(page.matrix.slower[number, choice.column])
    ]
    found = [f"{name} was {' and '.join(told[:NAMED])}"]
    if choice.changed:
        found.append(f"changed to be legal here: {choice.changed}; such a config was not timed")
    return found


def _percent(slower: float) -> str:
    return "the best" if slower < 0.0005 else f"{math.expm1(slower):.1%} slower than the best"


def library_reasons(page: Page, choice: Choice) -> list[str]:
    """Where the library was timed, nearest first."""
    found = []
    for number in np.argsort(-choice.weights, kind="stable"):
        place = page.matrix.places[number]
        if choice.weights[number] > 0 and place.speedup > 0:
            how = "slower" if place.speedup > 1 else "faster"
            ratio = place.speedup if place.speedup > 1 else 1 / place.speedup
            found.append(f"{place.library} was {ratio:.3f} x {how} at {_named(place)}")
    return found[:NAMED]


def _named(place: Place) -> str:
    return f"{place.problem} on {place.device.name}"


def time_of(page: Page, choice: Choice) -> Time:
    """The time that a choice rests on."""
    found = page.matrix.time(choice.place, choice.column)
    assert found is not None, "a choice rests on a known time"
    return found


def library_name(page: Page, problem: Problem, device: DeviceInfo, places: Sequence[int]) -> str:
    """What the library is called: as at a place, else as declared; empty where there is none."""
    for number in places:
        if page.matrix.places[number].library:
            return page.matrix.places[number].library
    baseline = problem.operation.baselines.get(device.kind)
    return baseline.named(problem.dtype) if baseline else ""
