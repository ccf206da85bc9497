"""What pages show, gathered from the requests that programs make, too."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.errors import NothingFound
from tuner.lookup import tune_command
from tuner.lookup.asking import known_device
from tuner.lookup.legality import completed
from tuner.results.measurement import Outcome
from tuner.results.record import Champion, ProblemKey, Record, Role
from tuner.service import job_queue, rendering
from tuner.service.answers import asked_in
from tuner.service.questions import LookupRequest
from tuner.service.snapshots import OpenSnapshot
from tuner.service.state import Service
from tuner.store import Store, demand, jobs, listing, watched
from tuner.store.streams import Selection
from tuner.study.crowns import Throne, champions_page, history_of, same

#: Champions that are looked at, and hours that a night has before the last of them.
LOOKED_AT, NIGHT_H = 100, 24
#: By less than this fraction a champion is neither faster nor slower.
SAME = 0.01
#: Events of nights that are looked at for the last report.
EVENTS = 6


@dataclass(frozen=True)
class ChampionChange:
    """A champion that was crowned lately.

    Attributes:
        place: Problem, device and regime.
        now: The champion.
        before: The one before it; None for a first one.
    """

    place: Throne
    now: Champion
    before: Champion | None

    @property
    def ratio(self) -> float | None:
        """Time before over time now: above 1 it got faster; None for a first one."""
        if self.before is None:
            return None
        before_s, now_s = self.before.record.measurement.time_s, self.now.record.measurement.time_s
        return before_s / now_s if before_s and now_s else None

    @property
    def what(self) -> str:
        """``new``, ``faster``, ``slower`` or ``same``."""
        ratio = self.ratio
        if ratio is None:
            return "new"
        if abs(ratio - 1) < SAME:
            return "same"
        return "faster" if ratio > 1 else "slower"

    @property
    def is_other(self) -> bool:
        """True if another config, or another source, is champion now."""
        return self.before is None or not same(self.now, self.before)


def last_night(store: Store) -> list[ChampionChange]:
    """The champions of the last day on which any were crowned, the largest change first.

    Champions of two nights were timed in different runs; whether a difference is real is for sentinels to say.
    """
    recent = listing.recent_champions(store, LOOKED_AT)
    if not recent:
        return []
    latest = datetime.fromisoformat(max(each.crowned_at for each in recent))
    since = (latest - timedelta(hours=NIGHT_H)).isoformat(timespec="microseconds")
    lately = [each for each in recent if each.crowned_at >= since]
    history = _histories(store, lately)
    changes = []
    for each in lately:
        place = Throne.of(each)
        own = history[place]
        if own[-1].id == each.id:
            earlier = [other for other in own[:-1] if other.crowned_at < since]
            changes.append(ChampionChange(place, each, earlier[-1] if earlier else None))
    return sorted(changes, key=lambda change: -abs((change.ratio or 1.0) - 1.0))


def _histories(store: Store, champions: Sequence[Champion]) -> dict[Throne, list[Champion]]:
    """All champions of the same places, oldest first."""
    found: dict[Throne, list[Champion]] = {}
    problems: list[ProblemKey] = list(dict.fromkeys(each.record.problem for each in champions))
    for champion in listing.champions_of(store, problems):
        found.setdefault(Throne.of(champion), []).append(champion)
    return found


def watched_night(store: Store) -> dict[str, Any] | None:
    """What the sentinels of the last night with a report came to; None if there was no such night."""
    ended = [each.data for each in watched.events(store, limit=EVENTS) if each.event == watched.ENDED]
    if not ended:
        return None
    told = ended[-1]
    return {
        "begun_at": told["begun_at"], "ended_at": told["ended_at"], "stopped": told["stopped"],
        "sentinels": len(told["sentinels"]), "no_sentinels": told["no_sentinels"],
        "alerts": told["alerts"], "behind": told["behind"], "confirmed": len(told["confirmed"]),
        "rolled_back": told["rolled_back"],
    }  # fmt: skip


def change_json(change: ChampionChange) -> dict[str, Any]:
    """A change as a JSON object."""
    record = change.now.record
    return {
        "operation": record.problem.operation, "shape": record.problem.dims, "dtype": record.problem.dtype,
        "layout": record.problem.layout, "precision": record.problem.precision,
        **record.problem.told_epilogue,
        "device": record.device.name, "regime": record.regime, "what": change.what, "ratio": change.ratio,
        "kernel": record.kernel, "time_s": record.measurement.time_s, "tflops": record.tflops,
        "gbps": record.gbps, "speedup": change.now.speedup or None, "crowned_at": change.now.crowned_at,
    }  # fmt: skip


#: Trials of a plot; of more, the last.
MOST_TRIALS = 3000
#: Operations of ``kernels/limits``, which measure what a device can do.
LIMITS = ("read", "copy", "multiply_add")


def trial_points(records: Sequence[Record]) -> dict[str, list[Any]]:
    """Records of kernels as columns: when, how fast, which config, how exact."""
    found = [record for record in records if record.role is not Role.BASELINE]
    return {
        "at": [record.measured_at for record in found],
        "kernel": [record.kernel for record in found],
        "role": [record.role.value for record in found],
        "outcome": [record.measurement.outcome.value for record in found],
        "reason": [record.measurement.reason[:200] for record in found],
        "time_s": [record.measurement.time_s for record in found],
        "tflops": [record.tflops or None for record in found],
        "gbps": [record.gbps or None for record in found],
        "error": [record.measurement.error and record.measurement.error.rms_rel for record in found],
        "config": [dict(record.config) for record in found],
        "id": [record.id for record in found],
    }


def champion_points(history: Sequence[Champion]) -> dict[str, list[Any]]:
    """Champions as columns, each beside the library from the same finals."""
    return {
        "at": [each.crowned_at for each in history],
        "kernel": [each.record.kernel for each in history],
        "config": [dict(each.record.config) for each in history],
        "tflops": [each.record.tflops for each in history],
        "gbps": [each.record.gbps for each in history],
        "library": [each.baseline.kernel if each.baseline else None for each in history],
        "library_tflops": [each.baseline.tflops if each.baseline else None for each in history],
        "library_gbps": [each.baseline.gbps if each.baseline else None for each in history],
        "speedup": [each.speedup or None for each in history],
    }


def problem_charts(records: Sequence[Record], history: Sequence[Champion]) -> dict[str, Any]:
    """What the plots of a problem show.

    Args:
        records: Its records, in the order measured.
        history: Its champions, oldest first.
    """
    library = [each for each in records if each.role is Role.BASELINE and each.measurement.error is not None]
    error = library[-1].measurement.error if library else None
    intense = [each for each in records if each.work["flops"] >= each.work["bytes"]]
    return {
        "unit": "tflops" if intense else "gbps", "trials": trial_points(records),
        "champions": champion_points(history), "library_error": error.rms_rel if error else None,
        "left_out": len(records) >= MOST_TRIALS,
    }  # fmt: skip


def best_trials(records: Sequence[Record], count: int) -> list[Record]:
    """The fastest measured records of kernels."""
    timed = [
        record
        for record in records
        if record.measurement.outcome is Outcome.MEASURED and record.role is not Role.BASELINE
    ]
    return sorted(timed, key=lambda record: record.measurement.time_s or 0.0)[:count]


def roofline(store: Store, device: DeviceInfo) -> dict[str, Any]:
    """Champions of a device by arithmetic intensity, and what the device was measured to do at most.

    Limits come from records of ``kernels/limits`` on that device; without them the best champion tells how far
    anyone got.
    """
    champions = store.champions(device=device.name)
    shown = [each for each in champions if each.record.problem.operation not in LIMITS and each.record.tflops]
    measured = _limits(store, device)
    tflops, gbps = [each.record.tflops for each in shown], [each.record.gbps for each in shown]
    points: dict[str, list[Any]] = {
        "problem": [str(each.record.problem) for each in shown],
        "operation": [each.record.problem.operation for each in shown],
        "kernel": [each.record.kernel for each in shown],
        "intensity": [each.record.work["flops"] / max(each.record.work["bytes"], 1.0) for each in shown],
        "tflops": tflops,
        "gbps": gbps,
        "speedup": [each.speedup or None for each in shown],
        "dtype": [each.record.problem.dtype for each in shown],
    }
    return {
        "points": points, "measured": measured,
        "best_seen": {
            "tflops": max(tflops) if tflops else None, "gbps": max(gbps) if gbps else None,
        },
    }  # fmt: skip


def _limits(store: Store, device: DeviceInfo) -> dict[str, float | None]:
    """GB/s of reading and copying, TFLOPS of multiply-adds, of the fastest record of each; None without any."""
    rates: dict[str, float | None] = {}
    for name in LIMITS:
        wanted = Selection(operation=name, device=device.name)
        found = [record for _, record in listing.latest(store, wanted, 500, only=[Outcome.MEASURED.value])]
        figures = [each.tflops if name == "multiply_add" else each.gbps for each in found]
        rates[name] = max(figures) if figures else None
    return rates


#: Changes of last night, fastest trials and champions of a device that are shown.
CHANGES, FASTEST, CHAMPIONS = 30, 20, 100


def overview_values(service: Service) -> dict[str, Any]:
    """The first page."""
    view = service.cache.present
    changes, devices = view.once("overview", lambda: _measured(view))
    kinds = ("faster", "slower", "same", "new")
    counts = {kind: sum(each["what"] == kind for each in changes) for kind in kinds}
    elsewhere = service.pool.cluster is not None and not service.pool.cluster.is_local
    here = set() if elsewhere else {found[0].info.name for found in service.pool.devices.values()}
    running = jobs.latest(service.store, (jobs.RUNNING, jobs.STOPPING), 20)
    names = [each["name"] for each in devices]
    missing = [name for name in dict.fromkeys(here) if name not in names]
    return {
        "changes": changes[:CHANGES], "counts": counts,
        "devices": [each | {"here": each["name"] in here} for each in devices],
        "device_names": [*names, *missing], "running": [job_queue.job_json(job) for job in running],
        "queued": jobs.counts(service.store)[jobs.QUEUED], "night": watched_night(service.store),
    }  # fmt: skip


def _measured(view: OpenSnapshot) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What changed last night, and the devices with counts."""
    changes = [change_json(each) for each in last_night(view.store)]
    found: dict[str, dict[str, Any]] = {}
    for each in listing.problems(view.store):
        told = found.setdefault(
            each.device.name, {"name": each.device.name, "kind": each.device.kind, "tuned": 0, "records": 0}
        )
        told["tuned"] += each.champions > 0
        told["records"] += each.records
    for info in view.snapshot.devices():
        found.setdefault(info.name, {"name": info.name, "kind": info.kind, "tuned": 0, "records": 0})
    return changes, sorted(found.values(), key=lambda each: (-each["records"], each["name"]))


def problem_values(service: Service, query: Mapping[str, str]) -> dict[str, Any]:
    """The page of a problem."""
    view, asked = asked_in(service, query)
    found = view.answer(asked)
    question = found.question
    assert question is not None, "an answer has its question"
    try:
        told = history_of(view.store, asked.problem, question.device, asked.regime)
    except NothingFound:
        told = {"history": []}
    records = listing.trials(view.store, asked.problem, question.device, asked.regime, MOST_TRIALS)
    origin = next((record.origin for record in records if record.origin), "")
    data = problem_charts(records, _champions(view, asked, question.device))
    return {
        "name": str(asked.problem), "answer": found.to_json(), "history": told["history"][::-1], "charts": data,
        "fastest": [_trial(record) for record in best_trials(records, FASTEST)],
        "query": rendering.question(_told(asked, question.device)), "plotly": plotly_version(),
        "command": tune_command(question, origin), "ask": _ask_command(asked, question.device),
        "study": next((record.study for record in reversed(records) if record.study), ""),
        "words": _words(asked), "job_device": _job_device(service, question.device, origin),
    }  # fmt: skip


def _champions(view: OpenSnapshot, asked: LookupRequest, device: DeviceInfo) -> list[Champion]:
    found = listing.champions_of(view.store, [asked.problem])
    return [
        each for each in found if (each.record.regime, each.record.device.name) == (asked.regime, device.name)
    ]


def _told(asked: LookupRequest, device: DeviceInfo) -> dict[str, Any]:
    key = asked.problem
    return {
        "operation": key.operation, "shape": key.dims, "dtype": key.dtype, "layout": key.layout,
        "precision": key.precision, **key.told_epilogue, "regime": asked.regime,
        "device": device.name,
    }  # fmt: skip


def _trial(record: Record) -> dict[str, Any]:
    error = record.measurement.error
    return {
        "time_s": record.measurement.time_s, "kernel": record.kernel, "config": dict(record.config),
        "error": error.rms_rel if error else None, "id": record.id, "at": record.measured_at,
    }  # fmt: skip


def _ask_command(asked: LookupRequest, device: DeviceInfo) -> str:
    key = asked.problem
    sizes = " ".join(str(size) for _, size in key.shape)
    options = {"--dtype": key.dtype, "--layout": key.layout, "--epilogue": key.epilogue,
               "--device": device.name}  # fmt: skip
    chosen = " ".join(f"{name} {shlex.quote(value)}" for name, value in options.items() if value)
    return f"tuner best {shlex.quote(key.operation)} {sizes} {chosen} --json"


def _words(asked: LookupRequest) -> str:
    key = asked.problem
    precision = key.precision if key.precision != "ieee" else ""
    sizes = (str(size) for _, size in key.shape)
    words = key.operation, *sizes, key.dtype, key.layout, precision, key.epilogue
    return " ".join(each for each in words if each)


def _job_device(service: Service, device: DeviceInfo, origin: str) -> str:
    """Spec of the device of this node that could tune a problem; empty where none can."""
    if origin:
        return ""
    if service.pool.cluster is not None and not service.pool.cluster.is_local:
        return device.name
    return next((spec for spec, found in service.pool.devices.items() if found[0].info.name == device.name), "")


def device_values(service: Service, name: str) -> dict[str, Any]:
    """The page of a device."""
    view = service.cache.present
    offered = service.pool.devices
    own = [each.info for found in offered.values() for each in found]
    info = offered[name][0].info if name in offered else known_device(name, [*own, *view.snapshot.devices()])
    info = completed(info, view.snapshot.devices())
    wanted = Selection(device=info.name)
    facts = {
        "kind": info.kind, "architecture": info.architecture, "driver": info.driver, "runtime": info.runtime,
        "memory": f"{info.memory_bytes / 2**30:.0f} GiB" if info.memory_bytes else "",
        "multiprocessors": info.sm_count, "cores": info.cores,
        "last-level cache": f"{info.l2_bytes / 2**20:.0f} MiB" if info.l2_bytes else "", "uuid": info.uuid,
    }  # fmt: skip
    data, champions = view.once(
        ("device", info.name),
        lambda: (roofline(view.store, info), champions_page(view.store, wanted, 0, CHAMPIONS)),
    )
    return {
        "info": info, "facts": [(key, value) for key, value in facts.items() if value],
        "charts": data, "page": champions, "plotly": plotly_version(),
    }  # fmt: skip


def wanted_values(service: Service) -> dict[str, Any]:
    """The page of what is wanted."""
    return {"wanted": [each.to_json() for each in demand.read(service.store)[:200]]}


@functools.cache
def plotly_version() -> str:
    """Version of the library of plots, so that browsers may keep it."""
    import importlib.metadata

    return importlib.metadata.version("plotly")
