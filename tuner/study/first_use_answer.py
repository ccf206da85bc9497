"""What a lookup answers after a first use, to be judged and thrown away."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace

from tuner.declare.catalogue import Catalogue
from tuner.declare.problem import Problem
from tuner.devices.machine_load import MachineWatch
from tuner.lookup import Answer, answer
from tuner.store import Store
from tuner.study.first_use import measure
from tuner.study.first_use_configs import FirstUse
from tuner.study.setup import key_of
from tuner.workers.crew import Crew


def answer_at_first_use(
    problem: Problem, crew: Crew, catalogue: Catalogue, regime: str = "cold", known: Store | None = None
) -> Answer:
    """What a lookup answers once a problem was measured as at its first use; the records are thrown away.

    Args:
        problem: The problem.
        crew: Workers of the device, which no other process uses; open or not.
        catalogue: Kernels.
        regime: How time is taken.
        known: Has the model and the champions to begin with, beside published ones.

    Raises:
        NothingFound: No config is legal.
        InputError: The problem does not fit into memory.
        DeviceTrouble: The device stays unwell.
    """
    kernels = catalogue.serving(problem, crew.found[0].target)
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Store.open(f"sqlite:///{folder}/first.db") as store:
        crew.open()
        measure(FirstUse(problem, kernels, regime=regime), store, crew, MachineWatch(crew.found), known)
        info = crew.devices[0].info
        found = answer(store, key_of(problem), info, regime, catalogue=catalogue)
    took = f"measured at first use, which took {time.monotonic() - begun_s:.1f} s with opening the device"
    return replace(found, reasons=(*found.reasons, took))
