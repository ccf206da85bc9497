"""What a command tells the server that started it as a job: files in the folder that ``TUNER_JOB`` names.

``process`` says who runs, ``progress`` how far it is, and ``exit`` how it ended. Each is whole or missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.declare.problem import Problem
    from tuner.study.progress import Progress

#: Names the folder.
VARIABLE = "TUNER_JOB"
#: Seconds between two notes of progress.
EVERY_S = 0.3


class _Told:
    """What was told last, in this process."""

    stage = ""
    at_s = 0.0
    done, of = 0, 1


def announce() -> None:
    """Tells which process runs the job."""
    if os.environ.get(VARIABLE):
        import psutil

        _write("process", {"pid": os.getpid(), "started": psutil.Process().create_time()})


def ended(code: int) -> None:
    """Tells how the job ended."""
    if os.environ.get(VARIABLE):
        _write("exit", {"code": code})


def count(done: int, of: int) -> None:
    """Sets how many problems of a plan are done, for the next note of progress."""
    _Told.done, _Told.of = done, of


def tell(problem: Problem, progress: Progress) -> None:
    """Tells how far a study is, a few times a second at the most."""
    if not os.environ.get(VARIABLE):
        return
    now_s = time.monotonic()
    if now_s - _Told.at_s < EVERY_S and progress.stage == _Told.stage:
        return
    _Told.at_s, _Told.stage = now_s, progress.stage
    work = problem.work
    best_s = progress.best_s
    _write(
        "progress",
        {
            "problem": str(problem), "stage": progress.stage, "trials": progress.trials,
            "outcomes": dict(progress.outcomes), "best": progress.best, "best_s": best_s,
            "library_s": progress.baseline_s, "tflops": work.flops / best_s / 1e12 if best_s else None,
            "elapsed_s": round(progress.elapsed_s, 1),
            "left_s": None if progress.left_s is None else round(progress.left_s, 1),
            "busy": list(progress.busy), "done": _Told.done, "of": _Told.of,
        },
    )  # fmt: skip


def _write(name: str, told: Mapping[str, Any]) -> None:
    """Writes a file whole; a job does not fail for want of it."""
    folder = Path(os.environ[VARIABLE])
    with contextlib.suppress(OSError, ValueError):
        part = folder / f".{name}.{os.getpid()}"
        part.write_text(json.dumps(told, allow_nan=False), encoding="utf-8")
        part.replace(folder / name)
