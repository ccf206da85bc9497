"""Chooses a config for a problem from what is known at other places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.lookup.estimate import Estimate, likely_loss
from tuner.lookup.features import Floats
from tuner.lookup.geometry import KernelConfigs
from tuner.lookup.legality import Flags, Points, nearby, steps
from tuner.lookup.matrix import Place, Time
from tuner.lookup.snapshot import SubjectData
from tuner.lookup.transfer import Model, Numbers

#: Configs of the best rank whose neighbours are tried where none is legal as it is.
REPAIRED = 24
#: The same where they are legal and only not worth trying as they are.
ADAPTED = 3
#: Log of time that a changed config is taken to lose.
CHANGED = 0.05
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
        loss: Fraction of speed that it is expected to lose against the best.
        library: The same of the library; NaN where no place knows it.
        weights: Per place: how much it counted.
        changed: What was changed to make it legal, or worth trying; empty where nothing was.
    """

    kernel: str
    config: Config
    column: int
    place: int
    loss: float
    library: float
    weights: Floats
    changed: str = ""

    @property
    def by_library(self) -> bool:
        """Whether the library is expected to be faster."""
        return not math.isnan(self.library) and self.library < self.loss


def choose(
    data: SubjectData,
    problem: Problem,
    device: DeviceInfo,
    places: Floats,
    *,
    kernel: str = "",
    left_out: int | None = None,
) -> Choice | None:
    """The best legal config by what the places say; None where they know none.

    Args:
        data: What is known.
        problem: What is to be computed.
        device: Where.
        places: Per place: 1 to ask it, 0 to leave it out.
        kernel: Only this kernel; any when empty.
        left_out: A place that nothing may be learnt from.
    """
    landscape = data.landscape
    if landscape is None or not places.any():
        return None
    model = data.model(left_out)
    places = landscape.nearest(model, problem, device, places)
    known = landscape.known_at(places)
    columns = np.flatnonzero(known & landscape.of(kernel))
    if not len(columns):
        return None
    right, fast = (flags[columns] for flags in landscape.legal(problem, device, kernel, known))
    estimate = landscape.estimate(model, problem, device, places, columns)
    context = RankingContext(data, problem, device, columns, estimate)
    order = np.where(fast, estimate.order, np.inf)
    at = int(np.argmin(order))
    changed = _adapted(context, model, ~fast, float(order[at]))
    if changed is not None:
        return changed
    if not fast.any() and right.any():
        at = int(np.argmin(np.where(right, estimate.order, np.inf)))
    return context.choice(at) if right[at] else _repaired(context)


@dataclass(frozen=True)
class RankingContext:
    """A problem on a device, with how known configs stand there: `columns` and `estimate` go together."""

    data: SubjectData
    problem: Problem
    device: DeviceInfo
    columns: Numbers
    estimate: Estimate

    def declared(self, at: int) -> tuple[Kernel, Config] | None:
        """Kernel and config of a column; None where it is no point of the kernel as it is now."""
        name, config = self.data.matrix.columns[int(self.columns[at])]
        kernel = self.data.matrix.kernels[name]
        if any(each.name not in config or config[each.name] not in each.values for each in kernel.parameters):
            return None
        return kernel, config

    def worth_trying(self, kernel: Kernel, config: Config) -> list[Config]:
        """The configs one step from this one that are worth trying here; where none is, two steps."""
        for others in steps(kernel, config):
            fast = Points(kernel, others).flags(self.problem, self.device)[1]
            if fast.any():
                return [Config(others[int(number)]) for number in np.flatnonzero(fast)]
        return []

    def choice(self, at: int, changed: Config | None = None) -> Choice:
        """A column as the choice, or a config that it was changed to."""
        column, estimate = int(self.columns[at]), self.estimate
        name, config = self.data.matrix.columns[column]
        changed = config if changed is None else changed
        what = ", ".join(
            f"{key}={changed[key]} for {key}={config[key]}" for key in changed if changed[key] != config[key]
        )
        place, loss = _source(self.data, column, estimate.weights), float(estimate.loss()[at])
        return Choice(name, changed, column, place, loss, estimate.library, estimate.weights, what)


def _adapted(context: RankingContext, model: Model, among: Flags, best: float) -> Choice | None:
    """A config that is worth trying here and a step or two from one that would be good, were it so itself.

    Args:
        context: What is asked.
        model: What was learnt.
        among: Per column: not worth trying as it is.
        best: Order of the best column that is; infinite where none is.
    """
    estimate, found = context.estimate, None
    order = np.where(among & (estimate.loss(CHANGED) < best), estimate.order, np.inf)
    for at in np.argsort(order, kind="stable")[:ADAPTED]:
        declared = context.declared(int(at)) if np.isfinite(order[at]) else None
        some = context.worth_trying(*declared) if declared is not None else []
        if declared is None or not some:
            continue
        costs = model.trust @ KernelConfigs(declared[0], some).costs(context.problem, context.device)
        least = int(np.argmin(costs))
        slower = estimate.slower[at] + CHANGED + costs[least]
        expected = float(likely_loss(slower, estimate.variance[at]))
        if expected < best:
            best, found = expected, context.choice(int(at), some[least])
    return found


def _source(data: SubjectData, column: int, weights: Floats) -> int:
    """The place that counted most among those that know a config."""
    known = ~np.isnan(data.matrix.slower[:, column])
    return int(np.argmax(np.where(known, weights, -1.0)))


def _repaired(context: RankingContext) -> Choice | None:
    """A legal config that differs in one parameter from one that would be good, were it legal."""
    for at in np.argsort(context.estimate.loss(), kind="stable")[:REPAIRED]:
        declared = context.declared(int(at))
        if declared is None:
            continue
        others = nearby(*declared)
        for flags in reversed(Points(declared[0], others).flags(context.problem, context.device)):
            if flags.any():
                return context.choice(int(at), others[int(np.argmax(flags))])
    return None


def reasons_for(data: SubjectData, choice: Choice) -> list[str]:
    """Why a config was chosen: where it was timed, and what it was changed to."""
    name, _ = data.matrix.columns[choice.column]
    order = np.argsort(-choice.weights, kind="stable")
    told = [
        f"{_percent(data.matrix.slower[number, choice.column])} at {_named(data.matrix.places[number])}"
        for number in order
        if choice.weights[number] > 0 and not math.isnan(data.matrix.slower[number, choice.column])
    ]
    found = [f"{name} was {' and '.join(told[:NAMED])}"]
    if choice.changed:
        found.append(f"changed to fit here: {choice.changed}; such a config was not timed")
    return found


def _percent(slower: float) -> str:
    return "the best" if slower < 0.0005 else f"{math.expm1(slower):.1%} slower than the best"


def library_reasons(data: SubjectData, choice: Choice) -> list[str]:
    """Where the library was timed, nearest first."""
    found = []
    for number in np.argsort(-choice.weights, kind="stable"):
        place = data.matrix.places[number]
        if choice.weights[number] > 0 and place.speedup > 0:
            how = "slower" if place.speedup > 1 else "faster"
            ratio = place.speedup if place.speedup > 1 else 1 / place.speedup
            found.append(f"{place.library} was {ratio:.3f} x {how} at {_named(place)}")
    return found[:NAMED]


def _named(place: Place) -> str:
    return f"{place.problem} on {place.device.name}"


def time_of(data: SubjectData, choice: Choice) -> Time:
    """The time that a choice rests on."""
    found = data.matrix.time(choice.place, choice.column)
    assert found is not None, "a choice rests on a known time"
    return found


def library_name(data: SubjectData, problem: Problem, device: DeviceInfo, places: Sequence[int]) -> str:
    """What the library is called: as at a place, else as declared; empty where there is none."""
    for number in places:
        if data.matrix.places[number].library:
            return data.matrix.places[number].library
    baseline = problem.operation.baselines.get(device.kind)
    return baseline.named(problem) if baseline else ""
