"""What a study, a night or a survey would do, told without a device: spaces, what is done, time."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Space
from tuner.devices.detect import DetectedDevice, is_spec
from tuner.lookup.asking import completed_device, opened, parse_device
from tuner.lookup.snapshot import Snapshot
from tuner.results.record import ProblemKey, Role
from tuner.store import Store


@contextmanager
def database(url: str) -> Iterator[Store]:
    """A database to read; an empty one in a folder for a while where there is none, so that nothing is made."""
    with (
        tempfile.TemporaryDirectory() as folder,
        opened(url) or Store.open(f"sqlite:///{folder}/none.db") as store,
    ):
        yield store


def device_of(text: str, store: Store | None) -> DeviceInfo:
    """A device by its name, or of this machine, with the limits that are known of its kind.

    Raises:
        UnknownName: Nothing is known of the name.
        DeviceTrouble: There is no such device here.
    """
    return completed_device(parse_device(text), Snapshot.open(store, None).devices())


def detected(text: str, store: Store) -> DetectedDevice:
    """The same as what a study asks for."""
    info = device_of(text, store)
    return DetectedDevice(text if text and is_spec(text) else info.kind, info)


def study_preview(
    problem: Problem, kernels: tuple[Kernel, ...], device: DeviceInfo, store: Store, regime: str
) -> dict[str, Any]:
    """What a study would search, what each rule leaves out first, and what is done.

    Args:
        problem: What is tuned.
        kernels: What competes.
        device: Where.
        store: Earlier records.
        regime: How times are taken.
    """
    key = ProblemKey.of(problem)
    known = store.records(problem=key, device=device, role=Role.TRIAL, regime=regime)
    trials = [(trial.kernel, trial.source_hash) for trial in known]
    spaces = [
        {
            "kernel": kernel.name, "combinations": space.raw_size, "legal": len(space),
            "sampled": space.sampled,
            "rejected": [{"rule": rule, "combinations": count} for rule, count in space.rejected if count],
            "tried": trials.count((kernel.name, kernel.source_hash)),
        }
        for kernel in kernels
        for space in [Space.build(kernel.parameters, kernel.constraints, problem, device)]
    ]  # fmt: skip
    champion = store.champion(key, device, regime)
    return {
        "problem": str(problem), "device": device.name, "regime": regime, "spaces": spaces,
        "champion": champion and champion.as_keys() | {"crowned_at": champion.crowned_at},
        "memory_bytes": problem.memory_bytes,
    }  # fmt: skip
