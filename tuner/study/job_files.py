"""What a command tells the server that started it as a job: files in the folder that ``TUNER_JOB`` names.

``progress`` says how far it is, and ``exit`` how it ended. Each is whole or missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

#: Name the folder, and the seconds that the job has run before.
VARIABLE, SPENT = "TUNER_JOB", "TUNER_JOB_SPENT_S"
#: Seconds between two notes of progress.
EVERY_S = 0.3


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
        write("exit", {"code": code})


def count(done: int, of: int) -> None:
    """Sets how many problems of a plan are done, for the next note of progress."""
    _LastProgress.done, _LastProgress.of, _LastProgress.is_night = done, of, True


def _spent_s(of_study_s: float = 0.0) -> float:
    """Seconds that the job has run: those of its study, or of its night, and of processes before this one."""
    before_s = float(os.environ.get(SPENT) or 0.0)
    own_s = time.monotonic() - _LastProgress.begun_s if _LastProgress.is_night else of_study_s
    return round(before_s + own_s, 1)


def tell(stage: str, note: Callable[[], Mapping[str, Any]]) -> None:
    """Tells how far a study is, a few times a second at the most.

    Args:
        stage: What it does; a new stage is told at once.
        note: What is told.
    """
    if not os.environ.get(VARIABLE):
        return
    now_s = time.monotonic()
    if now_s - _LastProgress.at_s < EVERY_S and stage == _LastProgress.stage:
        return
    _LastProgress.at_s, _LastProgress.stage = now_s, stage
    write("progress", note())


def counts(of_study_s: float) -> dict[str, Any]:
    """Problems that are done, of how many, and seconds that the job has run.

    Args:
        of_study_s: Those of its study.
    """
    return {"spent_s": _spent_s(of_study_s), "done": _LastProgress.done, "of": _LastProgress.of}


def write(name: str, what: Mapping[str, Any]) -> None:
    """Writes a file whole; a job does not fail for want of it."""
    folder = Path(os.environ[VARIABLE])
    with contextlib.suppress(OSError, ValueError):
        part = folder / f".{name}.{os.getpid()}"
        part.write_text(json.dumps(what, allow_nan=False), encoding="utf-8")
        part.replace(folder / name)
