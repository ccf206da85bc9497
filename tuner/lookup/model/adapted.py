"""Configs that were good near by, changed as little as makes them legal at a problem.

Constraints tie configs to shapes: of the configs of a kernel that a model keeps, none may be legal
at a problem that the kernel is made for. The kernel's own space there has the legal configs most like them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config, Space, Value
from tuner.lookup.features import Floats, Numbers
from tuner.lookup.legality import Flags

#: A kernel with so many good configs that are legal needs no others; those of each kernel that are changed.
ENOUGH, ORIGINS = 8, 8
#: Kernel and config by number.
Configs = Sequence[tuple[str, Mapping[str, Value]]]
#: Numbers of the configs of a kernel that has none.
NOTHING: Numbers = np.zeros(0, np.int64)
#: Combinations of a space that are looked at.
LOOKED_AT = 100_000
#: Log of time behind the best near by beyond which a config is not worth changing.
WORTH = 0.3
#: Log of time that a changed config is expected to fall behind the one that it was made from.
CHANGED = 0.05


@dataclass(frozen=True)
class Adapted:
    """Configs that were made legal.

    Attributes:
        configs: Kernel and config.
        origins: Number of the config that each was made from.
    """

    configs: Sequence[tuple[str, Config]]
    origins: Numbers


def adapted(
    problem: Problem,
    device: DeviceInfo,
    about: tuple[Mapping[str, Kernel], Configs, Mapping[str, Numbers]],
    behind: Floats,
    legal: Flags,
) -> Adapted:
    """Makes good configs legal, of the kernels that have few good ones.

    Args:
        problem: Where they are to be legal.
        device: Likewise.
        about: Kernels by name; kernel and config by number; and by kernel the numbers of those that are points
            of its parameters.
        behind: How far each is expected to be behind the fastest by what was timed near by; infinite: unknown.
        legal: Whether each is legal.
    """
    kernels, configs, points = about
    least = behind.min(initial=np.inf)
    found: dict[tuple[str, Config], int] = {}
    for name, kernel in kernels.items():
        mine = points.get(name, NOTHING)
        mine = mine[np.isfinite(behind[mine])]
        if legal[mine].sum() >= ENOUGH:
            continue
        tied = mine[~legal[mine] & (behind[mine] <= least + WORTH)]
        tied = tied[np.argsort(behind[tied], kind="stable")][:ORIGINS]
        if not len(tied):
            continue
        space = Space.build(kernel.parameters, kernel.constraints, problem, device, limit=LOOKED_AT)
        known = {Config(configs[number][1]) for number in mine[legal[mine]].tolist()}
        nearest = space.nearest_indices([configs[number][1] for number in tied.tolist()])
        for index, number in zip(nearest, tied.tolist() if nearest else (), strict=True):
            config = space[index]
            if config not in known:
                found.setdefault((name, config), number)
    return Adapted(list(found), np.array(list(found.values()), np.int64))
