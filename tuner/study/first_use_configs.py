"""What is tried of a problem at its first use: what a search would begin with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.lookup.legality import legal
from tuner.published import champions as published
from tuner.store import Store
from tuner.study.predictions import Predictions
from tuner.study.setup import key_of
from tuner.study.starting import declared_starts, near_champions, nearness

#: Configs that are tried at first.
CONFIGS = 8
#: Seconds of timing at the most, unless given.
SECONDS = 2.0
#: Published champions of other shapes to choose from.
NEIGHBOURS = 12


@dataclass(frozen=True)
class FirstUse:
    """A problem to be measured.

    Attributes:
        problem: What is computed.
        kernels: The kernels that may compute it.
        seconds: Seconds of timing at the most: the first config is timed, and finals have three rounds, in any
            case.
        regime: How times are taken.
    """

    problem: Problem
    kernels: Sequence[Kernel]
    seconds: float = SECONDS
    regime: str = "cold"


def candidates(
    asked: FirstUse, store: Store, device: DeviceInfo, said: Predictions
) -> list[tuple[str, Config]]:
    """The configs to try first, the most promising first; all obey every rule of their kernel.

    Args:
        asked: The problem.
        store: Where champions of other shapes are.
        device: Where, in full.
        said: A model's word.
    """
    key, kernels = key_of(asked.problem), {each.name: each for each in asked.kernels}

    def known() -> Iterator[tuple[str, Config]]:
        yield from said.starts
        yield from near_champions(store, asked.kernels, key, device)
        others = [each for each in published(key.operation) if each.record.device.kind == device.kind]
        for each in sorted(others, key=lambda each: nearness(key, device, each))[:NEIGHBOURS]:
            yield each.record.kernel, Config(each.record.config)
        yield from declared_starts(asked.kernels)

    found: dict[tuple[str, Config], None] = {}
    for name, config in known():
        kernel = kernels.get(name)
        if kernel is None or (name, config) in found:
            continue
        if legal(kernel, asked.problem, device, [config])[1][0]:
            found[name, Config({each.name: config[each.name] for each in kernel.parameters})] = None
            if len(found) == CONFIGS:
                break
    return list(found)
