"""Copies finished trials into a database in Optuna's own tables, for optuna-dashboard.

Optuna's storage takes some 25 ms of Python a trial. That would be the slowest part of asking and telling,
so a process of its own does it, at low priority. What it has not written when a study is interrupted it
writes at the study's next run: records of our own are the truth, this is a copy to look at.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from typing import IO, Any

import optuna
from optuna.trial import FrozenTrial

from tuner.search.sampler import IDENTITY

#: What the process runs.
_CHILD = "from tuner.search.mirror import main; main()"
#: Variable of its environment that holds the database's URL.
_URL = "TUNER_MIRROR_URL"
#: While the study runs, the process rests this many times as long as it writes.
REST = 4.0
#: Seconds that closing waits for the last trials to be written.
CLOSE_WITHIN_S = 3.0
#: Processes that finish by themselves; they are named here so that nobody takes them for forgotten.
_LEFT_RUNNING: list[subprocess.Popen[bytes]] = []


class SharedConnection(sqlite3.Connection):
    """A SQLite connection that shares its file with other writers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.execute("PRAGMA busy_timeout=60000")
        self.execute("PRAGMA journal_mode=WAL")
        self.execute("PRAGMA synchronous=NORMAL")


class Mirror:
    """Hands trials to the process that writes them; never makes the search wait, or fail."""

    def __init__(self, storage_url: str, study_name: str, objectives: Sequence[str]) -> None:
        """Starts the process.

        Args:
            storage_url: SQLAlchemy URL.
            study_name: Name of the study there; continued where it exists.
            objectives: What is minimised.
        """
        self._trials: queue.SimpleQueue[FrozenTrial | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, study_name, *objectives],
            env=os.environ | {_URL: storage_url},  # it may hold a password, and arguments are for all to see
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the study, which then closes this in order
        )
        self._thread = threading.Thread(target=self._send, name="mirror", daemon=True)
        self._thread.start()

    def add(self, trial: FrozenTrial) -> None:
        """Copies a finished trial soon."""
        self._trials.put(trial)

    def close(self) -> str:
        """Waits a while until all is written; the process finishes by itself what takes longer.

        Returns:
            What went wrong; empty where nothing did.
        """
        self._trials.put(None)
        self._thread.join(CLOSE_WITHIN_S)
        try:
            _, said = self._process.communicate(timeout=CLOSE_WITHIN_S)
        except subprocess.TimeoutExpired:
            _LEFT_RUNNING.append(self._process)
            return ""
        if self._process.returncode:
            lines = said.decode(errors="replace").strip().splitlines() or ["no reason given"]
            return f"trials were not copied for the dashboard: {lines[-1]}"
        return ""

    def _send(self) -> None:
        assert self._process.stdin is not None
        pipe = self._process.stdin
        with contextlib.suppress(OSError):
            while (trial := self._trials.get()) is not None:
                pickle.dump(trial, pipe)
                pipe.flush()
        with contextlib.suppress(OSError):
            pipe.close()
        self._process.stdin = None  # communicate() would flush it


def write_trials(source: IO[bytes], storage_url: str, study_name: str, objectives: Sequence[str]) -> None:
    """Writes pickled trials until the source ends; those that are there already are left out."""
    sqlite = storage_url.startswith("sqlite")
    storage = optuna.storages.RDBStorage(
        storage_url,
        engine_kwargs={"connect_args": {"factory": SharedConnection, "timeout": 60}} if sqlite else None,
    )
    study = optuna.create_study(
        storage=storage,
        study_name=study_name,
        load_if_exists=True,
        directions=["minimize"] * len(objectives),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names(list(objectives))
    there = {each.user_attrs.get(IDENTITY) for each in study.get_trials(deepcopy=False)}
    waiting: queue.SimpleQueue[FrozenTrial | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_read_all, args=(source, waiting), daemon=True)
    reader.start()
    while (trial := waiting.get()) is not None:
        if trial.user_attrs.get(IDENTITY) not in there:
            start_s = time.perf_counter()
            study.add_trial(trial)
            if reader.is_alive():
                # The study, which is at work now, writes to the same file.
                time.sleep(REST * (time.perf_counter() - start_s))


def _read_all(source: IO[bytes], waiting: queue.SimpleQueue[FrozenTrial | None]) -> None:
    with contextlib.suppress(EOFError):
        while True:
            waiting.put(pickle.load(source))
    waiting.put(None)


def main() -> None:
    """The process: trials come from stdin; study and objectives are its arguments."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with contextlib.suppress(OSError, AttributeError):
        os.nice(19)
    write_trials(sys.stdin.buffer, os.environ[_URL], sys.argv[1], sys.argv[2:])
