"""What pages show, gathered by the functions that answer programs, too."""

from __future__ import annotations

import shlex
from datetime import datetime, timedelta
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.errors import NothingFound
from tuner.extras import required
from tuner.lookup import tune_command
from tuner.lookup.asking import completed_device
from tuner.lookup.snapshot import ANSWER
from tuner.results.measurement import Outcome
from tuner.results.record import ProblemKey, Record, Role
from tuner.service import job_queue
from tuner.service.questions import LookupRequest
from tuner.service.snapshots import OpenSnapshot
from tuner.service.state import Service
from tuner.store import Store, jobs, listing, watched
from tuner.store.reading import Reader
from tuner.store.streams import Selection
from tuner.study.crowns import champion_json, champions_page, history_of, reign_json, reigns

#: Hours that a night has before the last champion of it was crowned.
NIGHT_H = 24
#: By less than this fraction a champion is neither faster nor slower.
SAME = 0.01
#: Events of nights that are looked at for the last report.
EVENTS = 6
#: Changes of last night, fastest trials, and champions of a device that are shown; trials that figures show.
CHANGES, FASTEST, CHAMPIONS, MOST_TRIALS = 30, 20, 100, 3000


def last_night(store: Store) -> list[dict[str, Any]]:
    """The champions of the last day on which any were crowned, the largest change first.

    ``ratio`` is the time of the champion before that day over the time now; ``what`` says whether that is
    ``faster``, ``slower`` or the ``same``, or the champion ``new``. Champions of two nights were timed in
    different runs; whether a difference is real is for sentinels to say.
    """
    places = reigns(store)
    if not places:
        return []
    latest = datetime.fromisoformat(max(reign.history[-1].crowned_at for reign in places))
    since = (latest - timedelta(hours=NIGHT_H)).isoformat(timespec="microseconds")
    changes = []
    for reign in places:
        now = reign.history[-1]
        earlier = [champion for champion in reign.history if champion.crowned_at < since]
        if now.crowned_at >= since:
            now_s, ratio, what = now.record.measurement.time_s, None, "new"
            before_s = earlier[-1].record.measurement.time_s if earlier else None
            if before_s and now_s:
                ratio = before_s / now_s
                what = "same" if abs(ratio - 1) < SAME else "faster" if ratio > 1 else "slower"
            changes.append(reign_json(reign) | champion_json(reign, now) | {"what": what, "ratio": ratio})
    return sorted(changes, key=lambda change: -abs((change["ratio"] or 1.0) - 1.0))


def overview_values(service: Service) -> dict[str, Any]:
    """The first page."""
    view, pool = service.cache.present, service.pool
    changes, devices = view.snapshot.once(
        (ANSWER, "overview"), lambda: (last_night(view.store), _measured_devices(view))
    )
    kinds = ("faster", "slower", "same", "new")
    elsewhere = pool.cluster is not None and not pool.cluster.is_local
    here = set() if elsewhere else {named[0].info.name for named in pool.devices.values()}
    running = jobs.latest(service.store, (jobs.RUNNING, jobs.STOPPING), 20)
    nights = [
        event.data for event in watched.events(service.store, limit=EVENTS) if event.event == watched.ENDED
    ]
    return {
        "changes": changes[:CHANGES], "devices": devices, "here_devices": here,
        "counts": {kind: sum(change["what"] == kind for change in changes) for kind in kinds},
        "device_names": list(dict.fromkeys([*(device["name"] for device in devices), *here])),
        "running": [job_queue.job_json(job) for job in running],
        "queued": jobs.counts(service.store)[jobs.QUEUED], "night": nights[-1] if nights else None,
    }  # fmt: skip


def _measured_devices(view: OpenSnapshot) -> list[dict[str, Any]]:
    """The devices with counts, those with the most records first."""
    measured_problems = listing.problems(view.store)
    infos = [*view.snapshot.devices(), *(measured.device for measured in measured_problems)]
    devices: dict[str, dict[str, Any]] = {
        info.name: {"name": info.name, "kind": info.kind, "tuned": 0, "records": 0} for info in infos
    }
    for measured in measured_problems:
        counts = devices[measured.device.name]
        counts["tuned"] += measured.champions > 0
        counts["records"] += measured.records
    return sorted(devices.values(), key=lambda device: (-device["records"], device["name"]))


def problem_values(service: Service, view: OpenSnapshot, asked: LookupRequest) -> dict[str, Any]:
    """The page of a problem."""
    answer, problem = view.answer(asked), asked.problem
    question = answer.question
    assert question is not None, "an answer has its question"
    device = question.device
    try:
        history = history_of(view.store, problem, device, asked.regime)["history"][::-1]
    except NothingFound:
        history = []
    records = listing.trials(view.store, problem, device, asked.regime, MOST_TRIALS)
    origin = next((record.origin for record in records if record.origin), "")
    champion = view.store.champion(problem, device, asked.regime)
    return {
        "name": str(problem), "answer": answer.to_json(), "history": history,
        "figures": required("figures").of_records(str(problem), records, champion) if records else [],
        "left_out": len(records) >= MOST_TRIALS, "fastest": _fastest(records),
        "asked": link_json(problem, device.name, asked.regime), "command": tune_command(question, origin),
        "ask": _ask_command(problem, device),
        "study": next((record.study for record in reversed(records) if record.study), ""),
        "words": str(problem).replace(" x ", " "), "job_device": "" if origin else _job_device(service, device),
    }  # fmt: skip


def link_json(problem: ProblemKey, device: str, regime: str) -> dict[str, Any]:
    """A problem on a device, as lists have it and the filter ``question`` takes it."""
    return {
        "operation": problem.operation, "shape": problem.dims, "dtype": problem.dtype, "layout": problem.layout,
        "precision": problem.precision, **problem.told_epilogue, "regime": regime, "device": device,
    }  # fmt: skip


def _fastest(records: list[Record]) -> list[Record]:
    """The fastest measured records of kernels."""
    kernels = (record for record in records if record.role is not Role.BASELINE)
    timed = [record for record in kernels if record.measurement.outcome is Outcome.MEASURED]
    return sorted(timed, key=lambda record: record.measurement.time_s or 0.0)[:FASTEST]


def _ask_command(problem: ProblemKey, device: DeviceInfo) -> str:
    sizes = " ".join(str(size) for _, size in problem.shape)
    options = {
        "dtype": problem.dtype,
        "layout": problem.layout,
        "epilogue": problem.epilogue,
        "device": device.name,
    }
    chosen = " ".join(f"--{name} {shlex.quote(value)}" for name, value in options.items() if value)
    return f"tuner best {shlex.quote(problem.operation)} {sizes} {chosen} --json"


def _job_device(service: Service, device: DeviceInfo) -> str:
    """Spec of the device of this node that could tune a problem; empty where none can."""
    pool = service.pool
    if pool.cluster is not None and not pool.cluster.is_local:
        return device.name
    return next((spec for spec, named in pool.devices.items() if named[0].info.name == device.name), "")


def device_values(service: Service, name: str) -> dict[str, Any]:
    """The page of a device."""
    view, offered = service.cache.present, service.pool.devices
    own = [device.info for named in offered.values() for device in named]
    known = [*own, *view.snapshot.devices()]
    info = completed_device(offered[name][0].info if name in offered else name, known)
    facts = {
        "kind": info.kind, "architecture": info.architecture, "driver": info.driver, "runtime": info.runtime,
        "memory": f"{info.memory_bytes / 2**30:.0f} GiB" if info.memory_bytes else "",
        "multiprocessors": info.sm_count, "cores": info.cores,
        "last-level cache": f"{info.l2_bytes / 2**20:.0f} MiB" if info.l2_bytes else "", "uuid": info.uuid,
    }  # fmt: skip

    def measured() -> dict[str, Any]:
        limits = _limits(view.store, info)
        champions = [
            champion
            for champion in view.store.champions(device=info.name)
            if champion.record.tflops and champion.record.problem.operation not in LIMITS
        ]
        figures = required("figures").of_champions(champions, limits) if champions else []
        page = champions_page(view.store, Selection(device=info.name), 0, CHAMPIONS)
        return {"page": page, "figures": figures, "has_limits": bool(limits)}

    return {"info": info, "facts": facts} | view.snapshot.once((ANSWER, "device", info.name), measured)


#: Operations of ``kernels/limits``, which measure what a device can do -> what they are a limit of.
LIMITS = {"read": "gbps", "copy": "gbps", "multiply_add": "tflops"}


def _limits(store: Reader, device: DeviceInfo) -> dict[str, float]:
    """GB/s of reading, else of copying, and TFLOPS of multiply-adds, as far as they were measured."""
    limits: dict[str, float] = {}
    for operation, unit in LIMITS.items():
        wanted = Selection(operation=operation, device=device.name)
        found = [record for _, record in listing.latest(store, wanted, 500, only=[Outcome.MEASURED.value])]
        if found and unit not in limits:
            limits[unit] = max(getattr(record, unit) for record in found)
    return limits
