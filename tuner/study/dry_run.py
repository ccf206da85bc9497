"""What a study, a night or a survey would do, told without a device: spaces, what is done, time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Space
from tuner.devices.detect import DetectedDevice
from tuner.lookup.asking import completed_device, opened, parse_device
from tuner.lookup.snapshot import Snapshot
from tuner.results.record import ProblemKey, Role
from tuner.store import Store


@contextmanager
def database(url: str) -> Iterator[Store]:
    """A database to read; an empty one in memory where there is none, so that nothing is made."""
    store = opened(url) or Store.open("sqlite:///:memory:")
    try:
        yield store
    finally:
        store.close()


def device_of(text: str, store: Store) -> DeviceInfo:
    """A device by its name, or of this machine, with the limits that are known of its kind.

    Raises:
        UnknownName: Nothing is known of the name.
        DeviceTrouble: There is no such device here.
    """
    known = Snapshot.open(store, None).devices()
    return completed_device(parse_device(text), known)


def detected(text: str, store: Store) -> DetectedDevice:
    """The same as what a study asks for."""
    info = device_of(text, store)
    return DetectedDevice(text if text.startswith("fake:") else info.kind, info)


def spaces_of(kernels: tuple[Kernel, ...], problem: Problem, device: DeviceInfo) -> list[dict[str, Any]]:
    """For each kernel the sizes of its space, and what each rule leaves out first."""
    found = []
    for kernel in kernels:
        space = Space.build(kernel.parameters, kernel.constraints, problem, device)
        found.append(
            {
                "kernel": kernel.name, "combinations": space.raw_size, "legal": len(space),
                "sampled": space.sampled,
                "rejected": [{"rule": rule, "combinations": count} for rule, count in space.rejected if count],
            }
        )  # fmt: skip
    return found


def study_preview(
    problem: Problem, kernels: tuple[Kernel, ...], device: DeviceInfo, store: Store, regime: str
) -> dict[str, Any]:
    """What a study would search, and what of it is done.

    Args:
        problem: What is tuned.
        kernels: What competes.
        device: Where.
        store: Earlier records.
        regime: How times are taken.
    """
    key = ProblemKey.of(problem)
    hashes = {kernel.name: kernel.source_hash for kernel in kernels}
    own = [
        each
        for each in store.records(problem=key, device=device, role=Role.TRIAL)
        if each.regime == regime and hashes.get(each.kernel) == each.source_hash
    ]
    done: dict[str, int] = {}
    for each in own:
        done[each.kernel] = done.get(each.kernel, 0) + 1
    champion = store.champion(key, device, regime)
    spaces = spaces_of(kernels, problem, device)
    return {
        "problem": str(problem), "device": device.name, "regime": regime,
        "spaces": [each | {"tried": done.get(each["kernel"], 0)} for each in spaces],
        "champion": {
            "kernel": champion.record.kernel, "config": dict(champion.record.config),
            "time_s": champion.record.measurement.time_s, "crowned_at": champion.crowned_at,
        } if champion is not None else None,
        "memory_bytes": problem.memory_bytes,
    }  # fmt: skip


def night_preview(states: list[Any], plan: Any, deadline_s: float | None) -> dict[str, Any]:
    """What a night would do with each problem, and the time that it asks for.

    Args:
        states: Of `tuner.night.night.Night.preview`.
        plan: The plan.
        deadline_s: `time.monotonic` at which the night ends; None for no end.
    """
    waiting = [each for each in states if each.state in ("to tune", "stale")]
    asked = [each.item.seconds for each in waiting]
    given_s = None if deadline_s is None else max(deadline_s - time.monotonic(), 0.0)
    names = [each.state for each in states]
    return {
        "problems": [
            {
                "problem": str(each.item.problem), "state": each.state, "why": each.why,
                "seconds": each.item.seconds, "trials": each.item.trials,
            }
            for each in states
        ],
        "counts": {name: names.count(name) for name in dict.fromkeys(names)},
        "surveys": [{"operation": each.operation.name, "seconds": each.seconds} for each in plan.surveys],
        "asked_s": None if None in asked else sum(asked) + sum(each.seconds for each in plan.surveys),
        "given_s": given_s,
    }  # fmt: skip
