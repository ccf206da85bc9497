"""Runs the jobs of a node: one for each device, the others wait. States are stored, so a restart loses none."""

import contextlib
import itertools
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from tuner.declare.hardware import DeviceInfo
from tuner.devices.device_lock import device_holder
from tuner.devices.settings import cache_root
from tuner.errors import EnvironmentTrouble, InputError, TunerError
from tuner.results.record import utc_now
from tuner.service import stored_jobs as jobs
from tuner.service.pool import DevicePool, check_allowed, node
from tuner.service.stored_jobs import CANCELLED, DONE, FAILED, QUEUED, RUNNING, STOPPING, JobRow
from tuner.store import Store
from tuner.store.opening import parsed, sqlite_file
from tuner.study.job_files import SPENT, VARIABLE
from tuner.study.locks import database_lock

#: Seconds that a job is given at the least, so that it comes to a report.
LEAST_S = 1.0
#: Characters of what a failed job said last.
LONGEST_WHY = 2000
#: Seconds between two looks at processes and queue.
LOOK_EVERY_S = 0.25
#: A job that was interrupted is killed after so many seconds.
KILL_S = 60.0
#: A job that could not run, or whose process was killed, is started again, so often and after so many seconds.
MOST_STARTS, RETRY_S = 20, 5.0
#: Free bytes without which no job is started.
ROOM_BYTES = 64 << 20
#: Exit code of a night whose sentinels have found something.
ALERTS = 4
_LOG = logging.getLogger(__name__)


class Watcher(threading.Thread):
    """Looks at something again and again. A trouble is logged once until it passes or becomes another.

    Attributes:
        closing: What it holds until it ends.
    """

    def __init__(self, effect: str, every_s: float, *looks: Callable[[], None]) -> None:
        """Prepares the thread.

        Args:
            effect: What a trouble means, for the log.
            every_s: Seconds between two looks.
            looks: What is done each time.
        """
        super().__init__(name=effect, daemon=True)
        self.closing = contextlib.ExitStack()
        self._effect, self._every_s, self._looks = effect, every_s, looks
        self._woken, self._ended = threading.Event(), threading.Event()

    def wake(self) -> None:
        """Looks at once."""
        self._woken.set()

    def close(self) -> None:
        """Ends the thread."""
        self._ended.set()
        self._woken.set()
        self.join()

    def run(self) -> None:
        """Looks until it is closed."""
        complaint = ""
        with self.closing:
            while not self._ended.is_set():
                try:
                    for look in self._looks:
                        look()
                    complaint = ""
                except Exception as error:  # without this thread, what it keeps would stay as it is for good
                    if str(error) != complaint:
                        complaint = str(error)
                        known = isinstance(error, (TunerError, OSError))
                        _LOG.warning("%s: %s", self._effect, error, exc_info=None if known else error)
                self._woken.wait(self._every_s)
                self._woken.clear()


class JobProcess:
    """The process of one job, whoever started it: this server, or one before it.

    Attributes:
        folder: Its files: the plan, and what it tells (see `tuner.study.job_files`).
    """

    def __init__(self, job_id: str, folder: Path) -> None:
        """Names the job, and the folder of all jobs."""
        self.folder = folder / job_id
        self._stopping_since_s = 0.0
        self._process: psutil.Process | None = None

    def start(self, job: JobRow, url: str, options: Iterable[str]) -> None:
        """Starts the process: a night of the job's plan.

        Args:
            job: The job.
            url: The database.
            options: More options of `tuner nightly`.

        Raises:
            OSError: It cannot be started, or its folder not be made.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        plan = self.folder / "plan.toml"
        plan.write_text(job.asked.get("plan", ""), encoding="utf-8")
        # The URL may hold a password, and all users can see arguments.
        environment = os.environ | {"TUNER_DB": url, VARIABLE: str(self.folder), SPENT: str(spent_s(job))}
        # As a night that is installed: questions go first.
        night = ["nice", "-n", "5", sys.executable, "-m", "tuner", "nightly", str(plan)]
        command = [*night, "--json", "--quiet", *options]
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            self._process = psutil.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=True,
            )  # fmt: skip
        with contextlib.suppress(OSError):  # where cores are shared among sessions, sessions are nice
            Path(f"/proc/{self._process.pid}/autogroup").write_text("5")

    @property
    def runs(self) -> bool:
        """True while the process is there."""
        self._process = self._process or self._started_before()
        with contextlib.suppress(psutil.Error):
            process = self._process
            return process is not None and process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        return False

    def _started_before(self) -> psutil.Process | None:
        """The process that an earlier server has started: it has the job's folder in its environment."""
        candidates = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(VARIABLE) == str(self.folder):
                    candidates.append((process.create_time(), process.pid, process))
        return min(candidates)[2] if candidates else None  # the first: what it starts inherits its environment

    def last_words(self) -> str:
        """Its messages at the end."""
        with contextlib.suppress(OSError):
            text = (self.folder / "err").read_text(encoding="utf-8", errors="replace")
            return text.rpartition("tuner: ")[2].strip()[-LONGEST_WHY:]
        return ""

    def stop(self) -> None:
        """Asks it to end in an orderly way, which keeps what was measured; kills it if it does not."""
        now_s = time.monotonic()
        if self._process is not None and not self._stopping_since_s:
            self._stopping_since_s = now_s
            with contextlib.suppress(psutil.Error):
                self._process.send_signal(signal.SIGINT)
        elif now_s - self._stopping_since_s > KILL_S:
            self.kill()

    def kill(self) -> None:
        """Ends it and the processes that it started, at once."""
        with contextlib.suppress(psutil.Error):
            if self.runs and self._process is not None:
                for process in (*self._process.children(recursive=True), self._process):
                    process.kill()

    def read(self, name: str) -> Any:
        """What a file of the job holds as JSON: ``progress``, ``exit``, ``out``; None without any."""
        with contextlib.suppress(OSError, ValueError):
            return json.loads((self.folder / name).read_text(encoding="utf-8"))
        return None


def fair(waiting: Iterable[JobRow], last_starts: Mapping[str, str]) -> list[JobRow]:
    """Puts jobs into a fair order: submitters take turns, each with the job of the highest priority first.

    Args:
        waiting: Jobs.
        last_starts: Submitter -> when a job of theirs was last started; whoever waited longest is first.
    """
    by_submitter: dict[str, list[JobRow]] = {}
    for job in sorted(waiting, key=lambda job: (-job.priority, job.number)):
        by_submitter.setdefault(job.submitter, []).append(job)
    turns = sorted(by_submitter, key=lambda name: (last_starts.get(name, ""), by_submitter[name][0].number))
    rounds = itertools.zip_longest(*(by_submitter[name] for name in turns))
    return [job for turn in rounds for job in turn if job is not None]


def queue(store: Store) -> list[JobRow]:
    """The jobs that wait on this node, in the order in which they would start on equal devices."""
    waiting = [job for job in jobs.unfinished(store, node()) if job.state == QUEUED]
    return fair(waiting, jobs.last_starts(store, node()))


def seconds_left(job: JobRow) -> float | None:
    """Seconds that a job may still take: of its budget, and until its deadline; None for no limit."""
    budget_s, limits = job.asked["seconds"], []
    if budget_s:
        limits.append(max(LEAST_S, budget_s - spent_s(job)))
    if job.deadline:
        left_s = (datetime.fromisoformat(job.deadline) - datetime.now(UTC)).total_seconds()
        limits.append(max(LEAST_S, left_s) if job.started_at else left_s)
    return min(limits, default=None)


def spent_s(job: JobRow) -> float:
    """Seconds that a job has run, in all processes that it had."""
    return float(job.progress.get("spent_s", 0.0))


class JobSupervisor(Watcher):
    """Starts, watches and ends the processes of jobs, in a thread of its own.

    Of several servers of one machine with one database, one runs the jobs: two would each take the other's
    processes for their own. When it ends, however it does, the next one takes over. Processes go on; the next
    server finds them.
    """

    def __init__(self, store: Store, url: str, pool: DevicePool) -> None:
        """Takes over the jobs that an earlier server has left, whether their processes are still there or not.

        Args:
            store: The database.
            url: Its URL, for the processes.
            pool: The devices of this node.
        """
        super().__init__("jobs wait", LOOK_EVERY_S, self.look)
        self._store, self._url, self._pool = store, url, pool
        self._folder = cache_root() / "service" / "jobs"
        self._folder.mkdir(parents=True, exist_ok=True)
        file = sqlite_file(parsed(url))
        self._folders = {self._folder, file.absolute().parent if file else self._folder}
        self._processes: dict[str, JobProcess] = {}
        self._not_before_s: dict[str, float] = {}
        self._has_turn = False

    def look(self) -> None:
        """Looks at every unfinished job once, if it is this server's turn to run them.

        Raises:
            LockedByAnother: Another server runs them.
            StoreTrouble: The database cannot be used.
        """
        if not self._has_turn:
            turn = DeviceInfo("the jobs of this machine", "jobs", uuid=f"jobs of {node()}")
            self.closing.enter_context(database_lock(self._url, turn, "tuner serve"))
            self._has_turn = True
        unfinished = jobs.unfinished(self._store, node())
        running = [job for job in unfinished if job.state != QUEUED and self._goes_on(job)]
        for job in queue(self._store):
            why = self._obstacle(job, running)
            if not why and self._start(job):
                running.append(job)
            elif why and why != job.why:
                jobs.note(self._store, job, why=why)

    # --- those that run ------------------------------------

    def _goes_on(self, job: JobRow) -> bool:
        """Notes the progress of a job, or how it ended; returns whether it still runs."""
        process = self._processes.setdefault(job.id, JobProcess(job.id, self._folder))
        runs = process.runs  # before the last progress is read
        progress = process.read("progress")
        if progress and progress != job.progress:
            jobs.note(self._store, job, progress=progress)
        if not runs:
            state, why = self._outcome(job, process)
            report = process.read("out") if state != QUEUED else None
            if jobs.change(self._store, job.id, [job.state], state, why, report=report):
                shutil.rmtree(process.folder, ignore_errors=True)
                del self._processes[job.id]
        elif job.state == STOPPING:
            process.stop()
        return runs

    def _outcome(self, job: JobRow, process: JobProcess) -> tuple[str, str]:
        """The state of a job whose process has ended, and why."""
        code, words = (process.read("exit") or {}).get("code"), process.last_words()
        if job.state == STOPPING:
            return CANCELLED, "cancelled; what was measured is kept"
        problems = (process.read("out") or {}).get("problems", [])
        if code == 0 and problems and all(one["state"] == "not reached" for one in problems):
            return FAILED, f"nothing was reached, {problems[0]['why']}; give it more seconds"
        if code in (0, ALERTS):
            return DONE, "" if code == 0 else "its sentinels found something slower"
        if code in (None, EnvironmentTrouble.exit_code):  # its device is taken, its scheduler away, a disk full
            return self._again(job, "its process was killed" if code is None else words)
        return FAILED, words or f"it ended with exit code {code}"

    def _again(self, job: JobRow, trouble: str) -> tuple[str, str]:
        """The state of a job that could not run for a reason that may pass, and why."""
        if job.starts >= MOST_STARTS:
            return FAILED, f"{trouble}; it was started {job.starts} times"
        self._not_before_s[job.id] = time.monotonic() + RETRY_S
        return QUEUED, f"{trouble}; it is started again and goes on where it stopped"

    # --- those that wait -----------------------------------

    def _obstacle(self, job: JobRow, running: list[JobRow]) -> str:
        """Why a job cannot start now; empty if it can."""
        for folder in self._folders:
            if shutil.disk_usage(folder).free < ROOM_BYTES:
                return f"it waits for {ROOM_BYTES >> 20} MiB of room on the disk of {folder}"
        named, place = self._pool.named(job.device), "the fleet"
        if not self._pool.cluster:
            running, place = [other for other in running if other.device == job.device], job.device
            if not named:
                return f"it waits for the device {job.device}, which this node does not offer now"
        if running:
            return f"it waits for job {running[0].id}, which runs on {place}"
        if time.monotonic() < self._not_before_s.get(job.id, 0.0):
            return str(job.why)
        holders = [] if self._pool.cluster else [device_holder(device.info) for device in named]
        return next((f"it waits for {holder}" for holder in holders if holder), "")

    def _start(self, job: JobRow) -> bool:
        """Starts a job, unless it cannot run any more; returns whether it runs."""
        process, left_s = JobProcess(job.id, self._folder), seconds_left(job)
        options = [*self._pool.options(job.device), *([] if job.asked["kind"] == "plan" else ["--again"])]
        options += [] if left_s is None else [f"--seconds={left_s:.3f}"]
        try:
            if left_s is not None and left_s <= 0:
                raise InputError("it was not reached before its deadline")
            for file in job.asked["files"]:
                check_allowed(self._store, file)
            new = {"starts": job.starts + 1, "started_at": job.started_at or utc_now()}
            if not jobs.change(self._store, job.id, [QUEUED], RUNNING, "", **new):
                return False
            process.start(job, self._url, options)
        except InputError as error:
            jobs.change(self._store, job.id, jobs.UNFINISHED, FAILED, str(error))
        except OSError as error:
            state, why = self._again(job, f"its process could not be started: {error}")
            jobs.change(self._store, job.id, jobs.UNFINISHED, state, why)
        else:
            self._processes[job.id] = process
            return True
        return False
