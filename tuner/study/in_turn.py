"""Configs and the library, timed in turn within an open study: their times compare, as trials' times do not."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tuner.declare.kernel import Rendered
from tuner.declare.space import Config
from tuner.errors import DeviceTrouble
from tuner.results.measurement import Measurement
from tuner.study.study import Study

#: Kernel and config.
Pick = tuple[str, Config]


def timed_in_turn(
    study: Study, rendered: Mapping[Pick, Rendered], seconds: float
) -> tuple[dict[Pick, Measurement], Measurement | None]:
    """Compiles configs, and times them and the library in turn, as finals do. Nothing is stored.

    Args:
        study: Open, on the problem; its search is over.
        rendered: The configs.
        seconds: Wall time of the rounds, of all players together.

    Returns:
        Measurements of the configs that compile, none if the device does not survive them; and the library's,
        that from before the search if it was not timed now, None without a library.
    """
    compiled = study.session.compile_all(dict(enumerate(rendered.values())))
    players = {pick: compiled[number] for number, pick in enumerate(rendered) if number in compiled}
    if not players:
        return {}, study.library
    try:
        found = study.session.worker.finals(list(players.values()), seconds)
    except DeviceTrouble:  # it did not survive them; the next study has a worker of its own
        return {}, study.library
    libraries = [each for each in found[len(players) :] if each.time_s]
    best = min(libraries, key=lambda each: each.time_s or math.inf, default=study.library)
    return dict(zip(players, found, strict=False)), best
