"""What a night on a fleet tells the server that started it as a job."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tuner.study import job_files
from tuner.study.progress import Progress, job_note

#: Seconds between two notes of progress, and workers that they name.
FLEET_EVERY_S, MOST_WORKERS = 1.0, 64


@contextlib.contextmanager
def telling_job(snapshot: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
    """Tells how far a night on a fleet is, every second while the block runs, from a thread of its own.

    Args:
        snapshot: The night's progress, as `tuner.fleet.runner` tells it.
    """
    if not os.environ.get(job_files.VARIABLE):
        yield
        return
    ended = threading.Event()

    def tell_on() -> None:
        while not ended.wait(FLEET_EVERY_S):
            # If the night changes what is read, the next note will do.
            with contextlib.suppress(RuntimeError):
                job_files.write("progress", _of_fleet(snapshot()))

    thread = threading.Thread(target=tell_on, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        job_files.write("progress", _of_fleet(snapshot()))


def _of_fleet(night: Mapping[str, Any]) -> dict[str, Any]:
    """A fleet's progress, with the keys of a study's where they mean the same."""
    workers = night["workers"]
    timed = [worker for worker in workers if worker["best_s"]]
    best: dict[str, Any] = min(timed, key=lambda worker: float(worker["best_s"]), default={})
    at_work = sum(worker["state"] == "works" for worker in workers)
    progress = Progress(
        f"{at_work} of {len(workers)} workers at work", sum(worker["trials"] for worker in workers),
        best_s=best.get("best_s"), best=best.get("best", ""), baseline_s=best.get("baseline_s"),
        left_s=night["left_s"], elapsed_s=night["elapsed_s"],
    )  # fmt: skip
    names = ("name", "device", "state", "doing", "slices", "trials", "trials_per_minute", "best_s")
    return job_note("", progress) | {
        "fleet": {
            "trials_per_minute": round(night["trials_per_minute"], 1), "slices": night["slices"],
            "problems_left": night["problems_left"],
            "workers": [{name: worker[name] for name in names} for worker in workers[:MOST_WORKERS]],
        },
    }  # fmt: skip
