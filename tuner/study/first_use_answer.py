"""What a lookup answers after a first use, to be judged and thrown away."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace

from tuner.declare.catalogue import Catalogue
from tuner.declare.problem import Problem
from tuner.devices.detect import DetectedDevice
from tuner.devices.machine_load import MachineWatch
from tuner.lookup import Answer, answer
from tuner.store import Store
from tuner.study.first_use import measure
from tuner.study.first_use_configs import FirstUse
from tuner.study.session import open_workers
from tuner.study.setup import key_of


def answer_at_first_use(
    problem: Problem, device: DetectedDevice, catalogue: Catalogue, regime: str = "cold"
) -> Answer:
    """What a lookup answers once a problem was measured as at its first use; the records are thrown away.

    Args:
        problem: The problem.
        device: Where; not used by another process.
        catalogue: Kernels.
        regime: How time is taken.

    Raises:
        NothingFound: No config is legal.
        InputError: The problem does not fit into memory.
        DeviceTrouble: The device stays unwell.
    """
    kernels = catalogue.serving(problem, device.target)
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Store.open(f"sqlite:///{folder}/first.db") as store:
        with open_workers([device]) as workers:
            measure(FirstUse(problem, kernels, regime=regime), store, workers, MachineWatch((device,)))
            info = workers[0].info
        found = answer(store, key_of(problem), info, regime, catalogue=catalogue)
    took = f"measured at first use, which took {time.monotonic() - begun_s:.1f} s with opening the device"
    return replace(found, reasons=(*found.reasons, took))
