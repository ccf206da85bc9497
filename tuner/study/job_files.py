"""What a command tells the server that started it as a job: files in the folder that ``TUNER_JOB`` names.

``progress`` says how far it is, and ``exit`` how it ended. Each is whole or missing.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tuner.declare.folders import write_whole

#: Name the folder, and the seconds that the job has run before.
VARIABLE, SPENT = "TUNER_JOB", "TUNER_JOB_SPENT_S"
#: Seconds between two notes of progress.
EVERY_S = 0.3
#: `time.monotonic` when the job began in this process.
BEGUN_S = time.monotonic()


#: The last note of this process.
_LAST = SimpleNamespace(stage="", at_s=0.0, done=0, of=1)


def ended(code: int) -> None:
    """Tells how the job ended."""
    if os.environ.get(VARIABLE):
        write("exit", {"code": code})


def count(done: int, of: int) -> None:
    """Sets how many problems of a plan are done, for the next note of progress."""
    _LAST.done, _LAST.of = done, of


def tell(stage: str, note: Callable[[], Mapping[str, Any]]) -> None:
    """Tells how far a study is, a few times a second at the most.

    Args:
        stage: What it does; a new stage is told at once.
        note: Makes the note.
    """
    now_s = time.monotonic()
    new = stage != _LAST.stage or now_s - _LAST.at_s >= EVERY_S
    if new and os.environ.get(VARIABLE):
        _LAST.at_s, _LAST.stage = now_s, stage
        write("progress", note())


def counts() -> dict[str, Any]:
    """Problems that are done, of how many, and seconds that the job has run, earlier processes included."""
    spent_s = float(os.environ.get(SPENT) or 0.0) + time.monotonic() - BEGUN_S
    return {"spent_s": round(spent_s, 1), "done": _LAST.done, "of": _LAST.of}


def write(name: str, what: Mapping[str, Any]) -> None:
    """Writes a file whole; a job does not fail for want of it."""
    with contextlib.suppress(OSError, ValueError):
        write_whole(Path(os.environ[VARIABLE]) / name, json.dumps(what, allow_nan=False).encode())
