"""Copies finished trials into a database in Optuna's own tables, for optuna-dashboard.

Optuna's storage takes about 25 ms of Python for each trial. That would be the slowest part of asking and
telling, so a separate process does it, at low priority. If a study is interrupted, its next run writes the
missing trials. Our own records are authoritative; this is a copy for viewing.
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
from collections.abc import Mapping, Sequence
from typing import IO, Any

import optuna
from optuna.trial import FrozenTrial

from tuner.declare.space import Config, Parameter, Space, choice
from tuner.search.sampler import IDENTITY, finished_trial
from tuner.search.strategy import Observation

#: Code that the process runs.
_CHILD = "from tuner.search.optuna_study import main; main()"
#: Environment variable with the database's URL.
_URL = "TUNER_MIRROR_URL"
#: While the study runs, the process rests this many times as long as it writes.
REST = 4.0
#: Seconds that closing waits for the last trials to be written.
CLOSE_WITHIN_S = 3.0
#: Processes that finish by themselves; kept here so that they do not look leaked.
_LEFT_RUNNING: list[subprocess.Popen[bytes]] = []


class SharedConnection(sqlite3.Connection):
    """A SQLite connection that shares its file with other writers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.execute("PRAGMA busy_timeout=60000")
        self.execute("PRAGMA journal_mode=WAL")
        self.execute("PRAGMA synchronous=NORMAL")


class Mirror:
    """Passes trials to the process that writes them; it never delays the search or makes it fail."""

    def __init__(self, storage_url: str, study_name: str, objectives: Sequence[str]) -> None:
        """Starts the process.

        Args:
            storage_url: SQLAlchemy URL.
            study_name: Name of the study there; continued where it exists.
            objectives: The objectives to minimise.
        """
        self._trials: queue.SimpleQueue[FrozenTrial | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, study_name, *objectives],
            env=os.environ | {_URL: storage_url},  # it may hold a password, and all users can see arguments
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # the study handles Ctrl-C and closes this process properly
        )
        self._thread = threading.Thread(target=self._send, name="mirror", daemon=True)
        self._thread.start()

    def add(self, trial: FrozenTrial) -> None:
        """Queues a finished trial for copying."""
        self._trials.put(trial)

    def close(self) -> str:
        """Waits a while for the writes; if they take longer, the process finishes them by itself.

        Returns:
            What went wrong; empty if nothing did.
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
    """Writes pickled trials until the source ends, except those already stored."""
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
                # The running study writes to the same file.
                time.sleep(REST * (time.perf_counter() - start_s))


def _read_all(source: IO[bytes], waiting: queue.SimpleQueue[FrozenTrial | None]) -> None:
    with contextlib.suppress(EOFError):
        while True:
            waiting.put(pickle.load(source))
    waiting.put(None)


def main() -> None:
    """Main program of the process: trials come from stdin; study and objectives are its arguments."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with contextlib.suppress(OSError, AttributeError):
        os.nice(19)
    write_trials(sys.stdin.buffer, os.environ[_URL], sys.argv[1], sys.argv[2:])


#: Studies that are shown.
MOST_STUDIES = 50


class Shown:
    """Studies in Optuna's form.

    Attributes:
        storage: What the dashboard reads.
    """

    def __init__(self) -> None:
        """Shows none yet."""
        self.storage = optuna.storages.InMemoryStorage()
        self._lock = threading.Lock()

    def add(self, name: str, objectives: Sequence[str], trials: Sequence[Observation]) -> int:
        """Shows a study; made anew if there are more trials than were shown.

        Args:
            name: Its name.
            objectives: What it minimises.
            trials: All of its finished trials.

        Returns:
            The study's number in the storage.
        """
        with self._lock, warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            known = {each.study_name: each._study_id for each in self.storage.get_all_studies()}
            if name in known:
                if self.storage.get_n_trials(known[name]) == len(trials):
                    return known[name]
                self.storage.delete_study(known[name])
            elif len(known) >= MOST_STUDIES:
                self.storage.delete_study(min(known.values()))
            study = optuna.create_study(
                storage=self.storage, study_name=name, directions=["minimize"] * len(objectives)
            )
            study.set_metric_names(list(objectives))
            spaces = _spaces(trials)
            for each in trials:
                self.storage.create_new_trial(study._study_id, finished_trial(spaces, each, objectives))
            return study._study_id


def _spaces(trials: Sequence[Observation]) -> Mapping[str, Space]:
    """What was tried of each kernel: the values that a parameter took are its choices."""
    found: dict[str, list[Config]] = {}
    for each in trials:
        found.setdefault(each.kernel, []).append(each.config)
    return {kernel: Space.of(_parameters(configs), configs) for kernel, configs in found.items()}


def _parameters(configs: Sequence[Config]) -> list[Parameter]:
    values = {name: dict.fromkeys(config[name] for config in configs) for name in configs[0]}
    ordered = {name: sorted(some, key=lambda each: (str(type(each)), each)) for name, some in values.items()}
    return [choice(name, *some) for name, some in ordered.items()]
