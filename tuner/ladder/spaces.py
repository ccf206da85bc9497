"""The configs that a step of the ladder may use, and the one that it uses without tuning."""

from __future__ import annotations

from collections.abc import Mapping

import numpy

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config, Parameter, Space, Value


def pinned_space(kernel: Kernel, pins: Mapping[str, Value], problem: Problem, device: DeviceInfo) -> Space:
    """Returns the legal configs in which the pinned parameters have their values.

    A rule that is for speed alone is dropped if it excludes all of the pinned values, so that a step is shown
    as published. Without pins, a kernel meant for other shapes has no configs left.
    """
    parameters = [
        Parameter(each.name, (pins[each.name],), each.scale) if each.name in pins else each
        for each in kernel.parameters
    ]
    found = Space.build(parameters, kernel.constraints, problem, device)
    if len(found) or not pins:
        return found
    return Space.build(parameters, [each for each in kernel.constraints if not each.for_speed], problem, device)


def first_configs(kernel: Kernel, pins: Mapping[str, Value], space: Space) -> list[Config]:
    """Returns the legal ones of the kernel's declared first configs, with pins applied."""
    wanted = [Config({**each, **pins}) for each in kernel.first_configs()]
    ordered = [Config({each.name: config[each.name] for each in space.parameters}) for config in wanted]
    return [config for config in ordered if config in space]


def declared_config(kernel: Kernel, pins: Mapping[str, Value], space: Space) -> Config:
    """Returns the first declared config that is legal; else the most similar legal config."""
    known = first_configs(kernel, pins, space)
    if known:
        return known[0]
    wanted = kernel.default_config()
    if wanted is None:
        found: Config = space[0]
        return found
    codes = [
        each.values.index(value) if (value := pins.get(each.name, wanted[each.name])) in each.values else 0
        for each in space.parameters
    ]
    differing = numpy.abs(space.codes.astype(int) - numpy.array(codes))
    # Fewest different parameters first, then the nearest values.
    order = numpy.lexsort((differing.sum(axis=1), (differing > 0).sum(axis=1)))
    nearest: Config = space[int(order[0])]
    return nearest
