"""What pages show, of the database and of published results."""

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import IEEE
from tuner.extras import required
from tuner.lookup import tune_command
from tuner.lookup.asking import completed_device
from tuner.lookup.snapshot import ANSWER
from tuner.lookup.stale import builtin_now
from tuner.night import stored
from tuner.results.measurement import Outcome
from tuner.results.record import Champion, ProblemKey, Record, Role
from tuner.service import stored_jobs as jobs
from tuner.service.answers import RequestedProblem
from tuner.service.job_queue import jobs_json
from tuner.service.records import selects
from tuner.service.snapshots import LookupRequest, OpenSnapshot
from tuner.service.state import Service
from tuner.store import Store, listing, watched
from tuner.store.published import slug, tuned_folder
from tuner.study.crowns import Reign, champion_json, reign_json, reigns

#: Events of nights that are looked at for the last report.
EVENTS = 6
#: Champions and wanted problems on the first page, fastest trials, and trials that figures show.
LATEST, WANTED, FASTEST, MOST_TRIALS = 20, 5, 20, 3000
#: Operations of ``kernels/limits``, which measure what a device can do -> what they are a limit of.
LIMITS = {"read": "gbps", "copy": "gbps", "multiply_add": "tflops"}
#: What problems may be sorted by -> its value in a row. The largest come first, but problems by their words.
ORDERS: Mapping[str, Any] = {
    "crowned": lambda row: row["crowned_at"] or "",
    "problem": lambda row: (row["operation"], row["dtype"], [*row["shape"].values()]),
    "ratio": lambda row: (row["champion"] or {}).get("speedup") or 0.0,
    "time": lambda row: (row["champion"] or {}).get("time_s") or 0.0,
    "records": lambda row: row["records"],
    "state": lambda row: (row["champion"] or {}).get("state") or "",
}


def places(view: OpenSnapshot, device: str = "") -> list[Reign]:
    """Every problem on a device that has a champion, of the database or published."""

    def known() -> list[Reign]:
        published = [result.champion for result in view.snapshot.standing("")]
        everywhere = reigns(view.store, published=published)
        return [place for place in everywhere if place.place.problem.operation not in LIMITS]

    every = view.snapshot.once((ANSWER, "places"), known)
    return [place for place in every if device in ("", place.place.device)]


def present(known: Iterable[Reign]) -> list[Champion]:
    """The champions that answer."""
    return [place.champion for place in known if place.champion is not None]


def problem_rows(view: OpenSnapshot, wanted: listing.Selection, sort: str = "") -> list[dict[str, Any]]:
    """The problems that were measured or published, with their champions."""
    rows: dict[Any, dict[str, Any]] = {}
    for place in places(view):
        rows[place.place] = reign_json(place) | {"records": 0, "crowned_at": place.history[-1].crowned_at}
    for measured in listing.problems(view.store):
        key = (measured.problem, measured.device.kind, measured.device.name, measured.regime)
        known = measured.to_json() | {"device": measured.device.name}
        row = rows.setdefault(key, known | {"champion": None, "records": 0})
        row["records"] += measured.records
    fitting = [
        row for (problem, _, name, regime), row in rows.items() if selects(wanted, problem, regime, name)
    ]
    return sorted(fitting, key=ORDERS.get(sort, ORDERS["crowned"]), reverse=sort != "problem")


def overview_values(service: Service) -> dict[str, Any]:
    """The first page."""
    view, pool = service.cache.present, service.pool

    def known() -> tuple[Any, ...]:
        rows = problem_rows(view, listing.Selection())
        tuned = Counter({row["device"]: 0 for row in rows})
        tuned.update(row["device"] for row in rows if row["champion"])
        devices = [name for name, _ in tuned.most_common()]
        champions = present(places(view, devices[0])) if devices else []
        return rows, devices, required("figures").of_champions(champions, None) if champions else []

    rows, devices, figures = view.snapshot.once((ANSWER, "overview"), known)
    here = [] if pool.is_elsewhere else [device.info.name for device in pool.devices.values()]
    running = jobs.latest(service.store, (jobs.RUNNING, jobs.STOPPING), 20)
    events = stored.events(service.store, limit=EVENTS)
    nights = [event.data for event in events if event.event == stored.ENDED]
    return {
        "rows": rows, "latest": [row for row in rows if row["records"]][:LATEST], "figures": figures,
        "here_devices": here, "device_names": list(dict.fromkeys([*devices, *here])),
        "running": jobs_json(service.store, *running), "wanted": wanted_rows(service)[:WANTED],
        "queued": jobs.counts(service.store)[jobs.QUEUED], "night": nights[-1] if nights else None,
    }  # fmt: skip


def problem_values(service: Service, view: OpenSnapshot, lookup: LookupRequest) -> dict[str, Any]:
    """The page of a problem."""
    answer, problem = view.answer(lookup), lookup.problem
    question = answer.question
    assert question is not None, "an answer has its question"
    device = question.device
    place = next((one for one in places(view, device.name) if one.place[::3] == (problem, lookup.regime)), None)
    records = _records_of(view, problem, device, lookup.regime)
    origin = next((record.origin for record in records if record.origin), "")
    timed = [record for record in records if record.measurement.outcome is Outcome.MEASURED]
    champion = place.champion if place else None
    history = [champion_json(place, one) for one in place.history] if place else []
    figures = required("figures").of_records(str(problem), records, champion) if records else []
    return {
        "key": problem, "answer": answer.to_json(),
        "history": history[::-1], "figures": figures + _over_time(history, records),
        "fastest": sorted(
            (record for record in timed if record.role is not Role.BASELINE),
            key=lambda record: record.measurement.time_s or 0.0,
        )[:FASTEST],
        "asked": problem.as_keys() | {"device": device.name, "regime": lookup.regime},
        "command": tune_command(question, origin),
        "study": next((record.study for record in reversed(records) if record.study), ""),
        "job_device": "" if origin else service.pool.spec_of(device.name),
    }  # fmt: skip


def _over_time(history: Sequence[Mapping[str, Any]], records: Iterable[Record]) -> list[dict[str, Any]]:
    """The champions of a problem beside the library in each of its forms, from the second on."""
    library = [record for record in records if record.role is Role.BASELINE and record.measurement.time_s]
    timed = [("champion", one["crowned_at"], one["time_s"]) for one in history]
    timed += [(record.kernel, record.measured_at, record.measurement.time_s) for record in library]
    traces: dict[str, dict[str, Any]] = {}
    for name, at, time_s in timed:
        empty = {"type": "scatter", "mode": "lines+markers", "name": name, "x": [], "y": []}
        trace = traces.setdefault(name, empty)
        trace["x"].append(at)
        trace["y"].append(time_s)
    axis = {"title": {"text": "seconds of a run"}, "rangemode": "tozero", "automargin": True}
    legend, margin = {"orientation": "h", "y": 1.15}, {"t": 40}
    layout = {"height": 360, "xaxis": {}, "yaxis": axis, "legend": legend, "margin": margin}
    about = "Each champion when it was crowned, and each run of the library."
    figure = {"name": "over-time", "title": "Champion and library over time", "about": about}
    return [figure | {"data": [*traces.values()], "layout": layout}] if len(history) > 1 else []


def _records_of(view: OpenSnapshot, problem: ProblemKey, device: DeviceInfo, regime: str) -> list[Record]:
    """The last records of a problem on a device, of the database and published, in order of measurement."""
    records = {record.id: record for record in listing.trials(view.store, problem, device, regime, MOST_TRIALS)}
    for result in view.snapshot.standing(problem.operation, (device.kind, device.name)):
        champion = result.champion.record
        if (champion.problem, champion.regime) == (problem, regime):
            for record in filter(None, (champion, result.champion.baseline, *result.runners_up)):
                records.setdefault(record.id, record)
    return sorted(records.values(), key=lambda record: record.measured_at)


def job_figures(store: Store, job: jobs.JobRow) -> list[dict[str, Any]]:
    """The trials of a job's problem since it was started, with the best so far."""
    if not job.started_at or "plan" not in job.asked or "problem" not in job.asked:
        return []
    named = job.asked["problem"]
    words = {name: value for name, value in named.items() if name != "shape"}
    problem = RequestedProblem(**words, dims=named["shape"]).key(builtin_now())
    records = listing.trials(store, problem, "", named["regime"], MOST_TRIALS)
    since = [record for record in records if record.measured_at >= job.started_at]
    figures = required("figures").of_records(str(problem), since, None) if since else []
    return [figure for figure in figures if figure["name"] == "history"]


def device_values(service: Service, name: str) -> dict[str, Any]:
    """The page of a device."""
    view, offered = service.cache.present, service.pool.devices
    known = [*(device.info for device in offered.values()), *view.snapshot.devices()]
    info = completed_device(offered[name].info if name in offered else name, known)

    def measured() -> dict[str, Any]:
        limits, crowned = _limits(view, info), [one for one in places(view, info.name) if one.champion]
        figures = required("figures").of_champions(present(crowned), limits) if crowned else []
        rows = [
            reign_json(one) | _facts(champion.record, limits)
            for one, champion in zip(crowned, present(crowned), strict=True)
        ]
        rows.sort(key=ORDERS["problem"])
        return {"champions": rows, "figures": figures, "has_limits": len(limits) == 2}

    return {"info": info} | view.snapshot.once((ANSWER, "device", info.name), measured)


def _facts(record: Record, limits: Mapping[str, float]) -> dict[str, Any]:
    """What else is known of a champion: its compiler's report, its occupancy, its share of a measured limit."""
    measured, problem = record.measurement, record.problem
    is_plain = (problem.dtype, problem.precision) == ("float32", IEEE)
    units = [unit for unit in limits if unit == "gbps" or is_plain]  # multiply-adds are those of float32
    shares = [getattr(record, unit) / limits[unit] for unit in units]
    occupancy = measured.circumstances.get("occupancy")
    return {"compiled": measured.compiled, "occupancy": occupancy, "share": max(shares, default=None)}


def _limits(view: OpenSnapshot, device: DeviceInfo) -> dict[str, float]:
    """GB/s of reading, else of copying, and TFLOPS of multiply-adds: measured here, else published."""
    limits: dict[str, float] = {}
    for operation, unit in LIMITS.items():
        wanted = listing.Selection(operation=operation, device=device.name)
        latest = listing.latest(view.store, wanted, 500, outcome=Outcome.MEASURED)
        if latest and unit not in limits:
            limits[unit] = max(getattr(record, unit) for _, record in latest)
    path = tuned_folder() / slug(device.name) / "limits.toml"
    return (tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}) | limits


def wanted_rows(service: Service) -> list[dict[str, Any]]:
    """What was asked and has no exact answer, with the device of a job that would tune it."""
    wanted = watched.demand(service.store)
    return [one.to_json() | {"job_device": service.pool.spec_of(one.device)} for one in wanted]
