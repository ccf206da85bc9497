"""What pages show, gathered from the requests that programs make, too."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Mapping
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.errors import NothingFound
from tuner.lookup import tune_command
from tuner.lookup.device_similarity import known_device
from tuner.lookup.legality import completed
from tuner.results.record import Champion, Record
from tuner.service import charts, overview, words
from tuner.service import job_queue as asked_jobs
from tuner.service.first_answers import asked_in
from tuner.service.questions import Asked
from tuner.service.shelf import View
from tuner.service.state import Service
from tuner.store import demand, jobs, listing
from tuner.store.streams import Selection
from tuner.study.crowns import champions_page, history_of

#: Changes of last night, fastest trials and champions of a device that are shown.
CHANGES, FASTEST, CHAMPIONS = 30, 20, 100


def overview_values(service: Service) -> dict[str, Any]:
    """The first page."""
    view = service.shelf.present
    changes, devices = view.once("overview", lambda: _measured(view))
    kinds = ("faster", "slower", "same", "new")
    counts = {kind: sum(each["what"] == kind for each in changes) for kind in kinds}
    elsewhere = service.offer.cluster is not None and not service.offer.cluster.is_local
    here = set() if elsewhere else {found[0].info.name for found in service.offer.devices.values()}
    running = jobs.latest(service.store, (jobs.RUNNING, jobs.STOPPING), 20)
    names = [each["name"] for each in devices]
    missing = [name for name in dict.fromkeys(here) if name not in names]
    return {
        "changes": changes[:CHANGES], "counts": counts,
        "devices": [each | {"here": each["name"] in here} for each in devices],
        "device_names": [*names, *missing], "running": [asked_jobs.job_json(job) for job in running],
        "queued": jobs.counts(service.store)[jobs.QUEUED], "night": overview.watched_night(service.store),
    }  # fmt: skip


def _measured(view: View) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What changed last night, and the devices with counts."""
    changes = [overview.change_json(each) for each in overview.last_night(view.store)]
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
    records = listing.trials(view.store, asked.problem, question.device, asked.regime, charts.MOST_TRIALS)
    origin = next((record.origin for record in records if record.origin), "")
    data = charts.problem_charts(records, _champions(view, asked, question.device))
    return {
        "name": str(asked.problem), "answer": found.to_json(), "history": told["history"][::-1], "charts": data,
        "fastest": [_trial(record) for record in charts.best_trials(records, FASTEST)],
        "query": words.question(_told(asked, question.device)), "plotly": plotly_version(),
        "command": tune_command(question, origin), "ask": _ask_command(asked, question.device),
        "study": next((record.study for record in reversed(records) if record.study), ""),
        "words": _words(asked), "job_device": _job_device(service, question.device, origin),
    }  # fmt: skip


def _champions(view: View, asked: Asked, device: DeviceInfo) -> list[Champion]:
    found = listing.champions_of(view.store, [asked.problem])
    return [
        each for each in found if (each.record.regime, each.record.device.name) == (asked.regime, device.name)
    ]


def _told(asked: Asked, device: DeviceInfo) -> dict[str, Any]:
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


def _ask_command(asked: Asked, device: DeviceInfo) -> str:
    key = asked.problem
    sizes = " ".join(str(size) for _, size in key.shape)
    options = {"--dtype": key.dtype, "--layout": key.layout, "--epilogue": key.epilogue,
               "--device": device.name}  # fmt: skip
    chosen = " ".join(f"{name} {shlex.quote(value)}" for name, value in options.items() if value)
    return f"tuner best {shlex.quote(key.operation)} {sizes} {chosen} --json"


def _words(asked: Asked) -> str:
    key = asked.problem
    precision = key.precision if key.precision != "ieee" else ""
    sizes = (str(size) for _, size in key.shape)
    words = key.operation, *sizes, key.dtype, key.layout, precision, key.epilogue
    return " ".join(each for each in words if each)


def _job_device(service: Service, device: DeviceInfo, origin: str) -> str:
    """Spec of the device of this node that could tune a problem; empty where none can."""
    if origin:
        return ""
    if service.offer.cluster is not None and not service.offer.cluster.is_local:
        return device.name
    return next(
        (spec for spec, found in service.offer.devices.items() if found[0].info.name == device.name), ""
    )


def device_values(service: Service, name: str) -> dict[str, Any]:
    """The page of a device."""
    view = service.shelf.present
    offered = service.offer.devices
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
        lambda: (charts.roofline(view.store, info), champions_page(view.store, wanted, 0, CHAMPIONS)),
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
