"""What a survey times: a pool of configs, and problems in an order that a later run repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tuner import published
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Operation, Problem
from tuner.declare.space import Config, Space
from tuner.devices.detect import DetectedDevice
from tuner.lookup.legality import Points
from tuner.lookup.model.design import Ranges, Turn, draw, pool, turns
from tuner.store import Store

#: Configs that a survey times, and those of them timed at one problem, at the most.
CONFIGS, PER_PROBLEM = 256, 48
#: Problems whose spaces random configs are taken from.
SPACES = 4
#: Bytes and operations of a drawn problem at the most, by the kind of device.
MOST = {"cuda": (4e9, 1e12), "cpu": (2.5e8, 2e10)}
#: Problems drawn at a time.
DRAWN_AT_ONCE = 256


@dataclass(frozen=True)
class SurveyRequest:
    """What a survey is asked.

    Attributes:
        operation: What is computed.
        kernels: What competes.
        found: The device.
        seconds: Wall time of this run.
        regime: How time is taken.
        seed: Of problems and configs; the same one goes on where an earlier run ended.
        ranges: What problems are drawn from; what suits the device when None.
        problems: Problems of one's own, which come first.
        drawn: False to time only those.
        configs: Configs at the most.
        per_problem: Configs at a problem, at the most.
    """

    operation: Operation
    kernels: tuple[Kernel, ...]
    found: DetectedDevice
    seconds: float
    regime: str = "cold"
    seed: int = 0
    ranges: Ranges | None = None
    problems: tuple[Problem, ...] = ()
    drawn: bool = True
    configs: int = CONFIGS
    per_problem: int = PER_PROBLEM

    @property
    def limits(self) -> Ranges:
        """What problems are drawn from."""
        most_bytes, most_flops = MOST[self.found.target]
        return self.ranges or Ranges(most_bytes=most_bytes, most_flops=most_flops)


@dataclass
class Design:
    """A survey's configs and turns.

    Attributes:
        request: What is asked.
        device: Where.
        configs: The pool: kernels and configs.
    """

    request: SurveyRequest
    device: DeviceInfo
    configs: Sequence[tuple[Kernel, Config]]
    _points: Mapping[str, tuple[list[int], Points]] = field(init=False)

    def __post_init__(self) -> None:
        numbers: dict[str, list[int]] = {}
        for number, (kernel, _) in enumerate(self.configs):
            numbers.setdefault(kernel.name, []).append(number)
        self._points = {
            name: (at, Points(self.configs[at[0]][0], [self.configs[each][1] for each in at]))
            for name, at in numbers.items()
        }

    def legal(self, problem: Problem) -> NDArray[np.bool_]:
        """Which configs are legal for a problem; shape (configs,)."""
        flags = np.zeros(len(self.configs), dtype=bool)
        for numbers, points in self._points.values():
            flags[numbers] = points.flags(problem, self.device)[0]
        return flags

    def turns(self, foreseen: Callable[[Problem], NDArray[np.float64]] | None = None) -> Iterator[Turn]:
        """What is timed at each problem, in order: the request's own problems, then drawn ones without end.

        Args:
            foreseen: See `tuner.lookup.model.design.turns`.
        """
        asked = self.request
        for number, problem in enumerate(asked.problems):
            yield from turns([problem], self.legal, asked.per_problem, asked.seed + number, foreseen)
        known = 0
        while asked.drawn:
            drawn = draw(asked.operation, asked.limits, max(2 * known, DRAWN_AT_ONCE), asked.seed)
            every = turns(drawn, self.legal, asked.per_problem, asked.seed, foreseen)
            for number, turn in enumerate(every):
                if number >= known:
                    yield turn
            known = len(drawn)


def design(request: SurveyRequest, store: Store, device: DeviceInfo) -> Design:
    """Chooses the configs: champions, also published ones, starts, neighbours, and some at random.

    Raises:
        InputError: The ranges leave no problem.
    """
    by_name = {kernel.name: kernel for kernel in request.kernels}
    chosen = pool(
        by_name, _champions(request, store, device), _at_random(request, device), request.configs, request.seed
    )
    return Design(request, device, [(by_name[name], config) for name, config in chosen])


def _champions(request: SurveyRequest, store: Store, device: DeviceInfo) -> list[tuple[str, Config]]:
    """Configs that are or were champions on such a device, those that are so most often first."""
    operation = request.operation.name
    found = [*store.champions(operation=operation, device=device)]
    found += [
        each
        for each in published.champions(operation)
        if (each.record.device.kind, each.record.device.name) == (device.kind, device.name)
    ]
    counts: dict[tuple[str, Config], int] = {}
    for each in found:
        key = each.record.kernel, Config(each.record.config)
        counts[key] = counts.get(key, 0) + 1
    return sorted(counts, key=lambda key: -counts[key])


def _at_random(request: SurveyRequest, device: DeviceInfo) -> list[tuple[str, Config]]:
    """Legal configs of every kernel in turn, from the spaces of a few problems."""
    rng = np.random.default_rng(request.seed)
    problems = [*request.problems[:SPACES]] or draw(request.operation, request.limits, SPACES, request.seed)
    by_kernel: list[list[tuple[str, Config]]] = []
    for kernel in request.kernels:
        found = []
        for problem in problems:
            space = Space.build(kernel.parameters, kernel.constraints, problem, device)
            count = min(request.configs, len(space))
            found += [(kernel.name, space[int(at)]) for at in rng.choice(len(space), count, replace=False)]
        by_kernel.append([found[at] for at in rng.permutation(len(found))])
    longest = max(map(len, by_kernel), default=0)
    return [each[at] for at in range(longest) for each in by_kernel if at < len(each)]
