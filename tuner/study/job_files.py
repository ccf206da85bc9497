"""What a command tells the server that started it as a job: files in the folder that ``TUNER_JOB`` names.

``progress`` says how far it is, and ``exit`` how it ended. Each is whole or missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.declare.problem import Problem
    from tuner.study.progress import Progress

#: Name the folder, and the seconds that the job has run before.
VARIABLE, SPENT = "TUNER_JOB", "TUNER_JOB_SPENT_S"
#: Seconds between two notes of progress.
EVERY_S = 0.3
#: Seconds between two notes of a fleet's progress, and workers that they name.
FLEET_EVERY_S, MOST_WORKERS = 1.0, 64


class _LastProgress:
    """What was told last, in this process."""

    stage = ""
    at_s = 0.0
    done, of = 0, 1
    begun_s = 0.0
    is_night = False


def announce() -> None:
    """Notes when the job began in this process."""
    _LastProgress.begun_s = time.monotonic()


def ended(code: int) -> None:
    """Tells how the job ended."""
    if os.environ.get(VARIABLE):
        _write("exit", {"code": code})


def count(done: int, of: int) -> None:
    """Sets how many problems of a plan are done, for the next note of progress."""
    _LastProgress.done, _LastProgress.of, _LastProgress.is_night = done, of, True


def _spent_s(of_study_s: float = 0.0) -> float:
    """Seconds that the job has run: those of its study, or of its night, and of processes before this one."""
    before_s = float(os.environ.get(SPENT) or 0.0)
    own_s = time.monotonic() - _LastProgress.begun_s if _LastProgress.is_night else of_study_s
    return round(before_s + own_s, 1)


def tell(problem: Problem, progress: Progress) -> None:
    """Tells how far a study is, a few times a second at the most."""
    if not os.environ.get(VARIABLE):
        return
    now_s = time.monotonic()
    if now_s - _LastProgress.at_s < EVERY_S and progress.stage == _LastProgress.stage:
        return
    _LastProgress.at_s, _LastProgress.stage = now_s, progress.stage
    work, best_s = problem.work, progress.best_s
    speed = {"tflops": work.flops / best_s / 1e12 if best_s else None}
    _write("progress", _note(str(problem), progress, progress.elapsed_s) | speed)


def _note(subject: str, progress: Progress, of_study_s: float = 0.0) -> dict[str, Any]:
    left_s = progress.left_s
    return progress.to_json() | {
        "problem": subject, "best": progress.best, "busy": list(progress.busy), "tflops": None,
        "elapsed_s": round(progress.elapsed_s, 1), "spent_s": _spent_s(of_study_s),
        "left_s": None if left_s is None else round(left_s, 1),
        "done": _LastProgress.done, "of": _LastProgress.of,
    }  # fmt: skip


@contextlib.contextmanager
def telling_of_fleet(snapshot: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
    """Tells how far a night on a fleet is, every second while the block runs, from a thread of its own.

    Args:
        snapshot: `tuner.fleet.night.FleetNight.snapshot`.
    """
    if not os.environ.get(VARIABLE):
        yield
        return
    ended = threading.Event()

    def tell_on() -> None:
        while not ended.wait(FLEET_EVERY_S):
            # If the night changes what is read, the next note will do.
            with contextlib.suppress(RuntimeError):
                _write("progress", _of_fleet(snapshot()))

    thread = threading.Thread(target=tell_on, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _write("progress", _of_fleet(snapshot()))


def _of_fleet(night: Mapping[str, Any]) -> dict[str, Any]:
    """A fleet's progress, with the keys of a study's where they mean the same."""
    from tuner.study.progress import Progress

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
    return _note("", progress) | {
        "fleet": {
            "trials_per_minute": round(night["trials_per_minute"], 1), "slices": night["slices"],
            "problems_left": night["problems_left"],
            "workers": [{name: worker[name] for name in names} for worker in workers[:MOST_WORKERS]],
        },
    }  # fmt: skip


def _write(name: str, what: Mapping[str, Any]) -> None:
    """Writes a file whole; a job does not fail for want of it."""
    folder = Path(os.environ[VARIABLE])
    with contextlib.suppress(OSError, ValueError):
        part = folder / f".{name}.{os.getpid()}"
        part.write_text(json.dumps(what, allow_nan=False), encoding="utf-8")
        part.replace(folder / name)
