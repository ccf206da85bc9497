"""What pages show, gathered by the functions that answer programs, too."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.errors import NothingFound
from tuner.extras import required
from tuner.lookup import tune_command
from tuner.lookup.asking import completed_device
from tuner.lookup.snapshot import ANSWER
from tuner.night import stored
from tuner.results.measurement import Outcome
from tuner.results.record import ProblemKey, Role
from tuner.service import stored_jobs as jobs
from tuner.service.job_queue import job_json
from tuner.service.snapshots import LookupRequest, OpenSnapshot
from tuner.service.state import Service
from tuner.store import Store, listing
from tuner.store.listing import Selection
from tuner.store.reading import Reader
from tuner.study.crowns import champion_json, champions_page, history_of, reign_json, reigns

#: Hours that a night has before the last champion of it was crowned.
NIGHT_H = 24
#: By less than this fraction a champion is neither faster nor slower.
SAME = 0.01
#: Events of nights that are looked at for the last report.
EVENTS = 6
#: Changes of last night, fastest trials, and champions of a device that are shown; trials that figures show.
CHANGES, FASTEST, CHAMPIONS, MOST_TRIALS = 30, 20, 100, 3000
#: Operations of ``kernels/limits``, which measure what a device can do -> what they are a limit of.
LIMITS = {"read": "gbps", "copy": "gbps", "multiply_add": "tflops"}


def last_night(store: Store) -> list[dict[str, Any]]:
    """The champions of the last day on which any were crowned, the largest change first.

    ``ratio`` is the time of the champion before that day over the time now; ``what`` says whether that is
    ``faster``, ``slower`` or the ``same``, or the champion ``new``. Champions of two nights were timed in
    different runs; whether a difference is real is for sentinels to say.
    """
    places = reigns(store)
    latest = max((reign.history[-1].crowned_at for reign in places), default="")
    changes = []
    for reign in places:
        now = reign.history[-1]
        since = (datetime.fromisoformat(latest) - timedelta(hours=NIGHT_H)).isoformat(timespec="microseconds")
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
    here = set() if pool.is_elsewhere else {named[0].info.name for named in pool.devices.values()}
    running = jobs.latest(service.store, (jobs.RUNNING, jobs.STOPPING), 20)
    nights = [event.data for event in stored.events(service.store, limit=EVENTS) if event.event == stored.ENDED]
    return {
        "changes": changes[:CHANGES], "devices": devices, "here_devices": here,
        "counts": {kind: sum(change["what"] == kind for change in changes) for kind in kinds},
        "device_names": list(dict.fromkeys([*(device["name"] for device in devices), *here])),
        "running": [job_json(job) for job in running],
        "queued": jobs.counts(service.store)[jobs.QUEUED], "night": nights[-1] if nights else None,
    }  # fmt: skip


def _measured_devices(view: OpenSnapshot) -> list[dict[str, Any]]:
    """The devices with counts, those with the most records first."""
    rows = listing.problems(view.store)
    kinds = {info.name: info.kind for info in [*view.snapshot.devices(), *(row.device for row in rows)]}
    devices = []
    for name, kind in sorted(kinds.items()):
        own = [row for row in rows if row.device.name == name]
        tuned, records = sum(row.champions > 0 for row in own), sum(row.records for row in own)
        devices.append({"name": name, "kind": kind, "tuned": tuned, "records": records})
    return sorted(devices, key=lambda device: -device["records"])


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
    timed = [
        record
        for record in records
        if record.role is not Role.BASELINE and record.measurement.outcome is Outcome.MEASURED
    ]
    return {
        "key": problem, "answer": answer.to_json(), "history": history,
        "figures": required("figures").of_records(str(problem), records, champion) if records else [],
        "left_out": len(records) >= MOST_TRIALS,
        "fastest": sorted(timed, key=lambda record: record.measurement.time_s or 0.0)[:FASTEST],
        "asked": link_json(problem, device.name, asked.regime), "command": tune_command(question, origin),
        "study": next((record.study for record in reversed(records) if record.study), ""),
        "job_device": "" if origin else service.pool.spec_of(device.name),
    }  # fmt: skip


def link_json(problem: ProblemKey, device: str, regime: str) -> dict[str, Any]:
    """A problem on a device, as lists have it and the filter ``question`` takes it."""
    return {
        "operation": problem.operation, "shape": problem.dims, "dtype": problem.dtype, "layout": problem.layout,
        "precision": problem.precision, **problem.told_epilogue, "regime": regime, "device": device,
    }  # fmt: skip


def device_values(service: Service, name: str) -> dict[str, Any]:
    """The page of a device."""
    view, offered = service.cache.present, service.pool.devices
    own = [device.info for named in offered.values() for device in named]
    known = [*own, *view.snapshot.devices()]
    info = completed_device(offered[name][0].info if name in offered else name, known)

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

    return {"info": info} | view.snapshot.once((ANSWER, "device", info.name), measured)


def _limits(store: Reader, device: DeviceInfo) -> dict[str, float]:
    """GB/s of reading, else of copying, and TFLOPS of multiply-adds, as far as they were measured."""
    limits: dict[str, float] = {}
    for operation, unit in LIMITS.items():
        wanted = Selection(operation=operation, device=device.name)
        found = [record for _, record in listing.latest(store, wanted, 500, only=[Outcome.MEASURED.value])]
        if found and unit not in limits:
            limits[unit] = max(getattr(record, unit) for record in found)
    return limits
