"""Runs the jobs of a node: one for each device, the others wait. States are stored, so a restart loses none."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil

from tuner.declare.hardware import DeviceInfo
from tuner.devices.device_lock import device_holder, lock_files
from tuner.devices.settings import cache_root
from tuner.errors import EnvironmentTrouble, InputError
from tuner.night.plan import clock_time, seconds_until
from tuner.results.record import utc_now
from tuner.service import stored_jobs as jobs
from tuner.service.pool import ANY, DevicePool, allowed_file, node
from tuner.service.stored_jobs import CANCELLED, DONE, FAILED, QUEUED, RUNNING, STOPPING, Job
from tuner.service.watcher import Watcher
from tuner.store import Store
from tuner.store.opening import parsed, sqlite_file
from tuner.study.job_files import SPENT, VARIABLE
from tuner.study.locks import database_lock

#: Seconds that a job is given at the least, so that it comes to a report; that one has until its deadline
#: which names no budget.
LEAST_S, USUAL_S = 1.0, 60.0
#: Characters of what a failed job said last.
LONGEST_WHY = 2000
#: Seconds between two looks at processes and queue.
LOOK_EVERY_S = 0.25
#: A job that was interrupted is killed after so many seconds.
KILL_S = 60.0
#: A job whose process was killed is started again, so often.
MOST_STARTS = 20
#: Seconds before a job is tried again that could not run: its device was taken, its fleet out of reach.
RETRY_S, FLEET_RETRY_S = 2.0, 15.0
#: Free bytes without which no job is started; what a command says that found none.
ROOM_BYTES, NO_SPACE = 64 << 20, "no space is left"
#: Exit code of a night whose sentinels have found something.
ALERTS = 4


class JobProcess:
    """The process of one job, whoever started it: this server, or one before it."""

    def __init__(self, job_id: str, folder: Path) -> None:
        """Names the job, and the folder of all jobs."""
        self.folder = folder / job_id
        self._stopping_since_s = 0.0
        self._process: psutil.Process | None = None

    def start(self, job: Job, url: str, pool: DevicePool) -> None:
        """Starts the process.

        Args:
            job: The job.
            url: The database.
            pool: Where the job runs.

        Raises:
            OSError: It cannot be started, or its folder not be made.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        plan = job.asked.get("plan") or plan_text(job, seconds_left(job))
        (self.folder / "plan.toml").write_text(plan, encoding="utf-8")
        # The URL may hold a password, and all users can see arguments.
        environment = os.environ | {"TUNER_DB": url, VARIABLE: str(self.folder), SPENT: str(spent_s(job))}
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            self._process = psutil.Popen(
                [sys.executable, "-m", "tuner", *arguments(job, self.folder, pool)], env=environment,
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip

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

    def exit_code(self) -> int | None:
        """How it ended by its own account; None if it did not come to say so: it was killed."""
        end = self.read("exit")
        if end is not None:
            return int(end["code"])
        code = self._process.wait(1) if isinstance(self._process, psutil.Popen) else None
        return code if code is not None and code >= 0 else None

    def last_words(self) -> str:
        """Its messages at the end."""
        with contextlib.suppress(OSError):
            text = (self.folder / "err").read_text(encoding="utf-8", errors="replace")
            _, start, message = text.rpartition("tuner: ")
            return (message if start else text[-LONGEST_WHY:]).strip()[:LONGEST_WHY]
        return ""

    def stop(self) -> None:
        """Asks it to end in an orderly way, which keeps what was measured; kills it if it does not."""
        if not self._stopping_since_s:
            self._stopping_since_s = time.monotonic()
            with contextlib.suppress(psutil.Error):
                if self.runs and self._process is not None:
                    self._process.send_signal(signal.SIGINT)
        elif time.monotonic() - self._stopping_since_s > KILL_S:
            self.kill()

    def kill(self) -> None:
        """Ends it and the processes that it started, at once."""
        with contextlib.suppress(OSError, psutil.Error):
            if self.runs and self._process is not None:
                for process in (*self._process.children(recursive=True), self._process):
                    process.kill()

    def read(self, name: str) -> Any:
        """What a file of the job holds as JSON: its ``progress``, its output ``out``; None without any."""
        with contextlib.suppress(OSError, ValueError):
            return json.loads((self.folder / name).read_text(encoding="utf-8"))
        return None


#: Keys of a problem that are options of `tuner tune` and keys of a plan alike.
WORDS = ("dtype", "layout", "precision", "epilogue", "regime")


def arguments(job: Job, folder: Path, pool: DevicePool) -> list[str]:
    """The command of a job: every value in it was checked when it was submitted.

    A plan is a night, and on a cluster a problem is one of that problem alone.
    """
    asked, left_s, by_plan = job.asked, seconds_left(job), job.asked["kind"] == "plan"
    devices = [device.spec for device in pool.named(job.device)] if pool.cluster else [job.device]
    if pool.is_elsewhere:
        devices = [job.device] if job.device != ANY else []
    shared = ["--json", *([f"--device={','.join(devices)}"] if devices else [])]
    shared += [f"--seconds={left_s:.3f}"] if left_s is not None else []
    if pool.cluster:
        shared += [f"--cluster={pool.cluster}", "--quiet", *([] if by_plan else ["--again"])]
        shared += [f"--tls-{name}={path}" for name, path in zip(("ca", "cert", "key"), pool.tls, strict=False)]
    if by_plan or pool.cluster:
        return ["nightly", str(folder / "plan.toml"), *shared]
    problem = asked["problem"]
    own = [f"--set={name}={size}" for name, size in problem["shape"].items()]
    own += [f"--{name}={problem[name]}" for name in WORDS if problem.get(name)]
    own += [f"--kernel={name}" for name in problem["kernels"]]
    own += [f"--trials={asked['trials']}"] if asked["trials"] else []
    return ["tune", problem["file"] or problem["operation"], *own, *shared]


def plan_text(job: Job, seconds: float | None) -> str:
    """The plan of a job's problem alone; texts of JSON are texts of TOML, too."""
    problem = job.asked["problem"]
    values = {name: problem.get(name) for name in ("file", "operation", *WORDS, "kernels")}
    values |= {"trials": job.asked["trials"], "seconds": seconds}
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items() if value]
    sizes = ", ".join(f"{json.dumps(name)} = {size}" for name, size in problem["shape"].items())
    return "\n".join(["[[problems]]", *lines, f"set = {{{sizes}}}", ""])


def fair(waiting: Iterable[Job], last_starts: Mapping[str, str]) -> list[Job]:
    """Puts jobs into a fair order: submitters take turns, each with the job of the highest priority first.

    Args:
        waiting: Jobs.
        last_starts: Submitter -> when a job of theirs was last started; whoever waited longest is first.
    """
    by_submitter: dict[str, list[Job]] = {}
    for job in sorted(waiting, key=lambda job: (-job.priority, job.number)):
        by_submitter.setdefault(job.submitter, []).append(job)
    turns = sorted(by_submitter, key=lambda name: (last_starts.get(name, ""), by_submitter[name][0].number))
    rounds = itertools.zip_longest(*(by_submitter[name] for name in turns))
    return [job for turn in rounds for job in turn if job is not None]


def queue(store: Store) -> list[Job]:
    """The jobs that wait on this node, in the order in which they would start on equal devices."""
    waiting = [job for job in jobs.unfinished(store, node()) if job.state == QUEUED]
    return fair(waiting, jobs.last_starts(store, node()))


def seconds_left(job: Job) -> float | None:
    """Seconds that a job may still take: of its budget, and until its deadline; None for no limit."""
    asked, limits = job.asked, []
    budget_s = asked["seconds"] or asked.get("plan_seconds")
    if budget_s:
        limits.append(max(LEAST_S, budget_s - spent_s(job)))
    if job.deadline:
        left_s = (datetime.fromisoformat(job.deadline) - datetime.now(UTC)).total_seconds()
        limits.append(max(LEAST_S, left_s) if job.started_at else left_s)
        if asked["kind"] == "problem" and not asked["seconds"] and not asked["trials"]:
            limits.append(USUAL_S)
    return min(limits, default=None)


def spent_s(job: Job) -> float:
    """Seconds that a job has run, in all processes that it had."""
    return float(job.progress.get("spent_s", 0.0))


def end_of(job: Job) -> str:
    """The deadline of a job that starts now: its own, or the next time of day that its plan names."""
    until = job.asked.get("until")
    if not until:
        return job.deadline
    ends = datetime.now(UTC) + timedelta(seconds=seconds_until(clock_time(until), datetime.now()))
    return min(filter(None, (job.deadline, ends.isoformat(timespec="microseconds"))))


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
        super().__init__("jobs wait", LOOK_EVERY_S)
        self._store, self._url, self._pool = store, url, pool
        self._folder = cache_root() / "service" / "jobs"
        self._folder.mkdir(parents=True, exist_ok=True)
        file = sqlite_file(parsed(url))
        self._folder_of_database = file.absolute().parent if file else self._folder
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
        for job in jobs.unfinished(self._store, node()):
            if job.state != QUEUED:
                self._watch(job)
        running = [job for job in jobs.unfinished(self._store, node()) if job.state != QUEUED]
        for job in queue(self._store):
            why = self._obstacle(job, running)
            if not why and self._start(job):
                running.append(job)
            elif why and why != job.why:
                jobs.note(self._store, job.id, why)

    # --- those that run ------------------------------------

    def _watch(self, job: Job) -> None:
        process = self._processes.setdefault(job.id, JobProcess(job.id, self._folder))
        runs = process.runs  # before the last progress is read
        progress = process.read("progress")
        if progress and progress != job.progress:
            jobs.progressed(self._store, job.id, progress)
        if not runs:
            state, why = self._outcome(job, process)
            report = process.read("out") if state != QUEUED else None
            if jobs.change(self._store, job.id, [job.state], state, why, report=report):
                shutil.rmtree(process.folder, ignore_errors=True)
                del self._processes[job.id]
        elif job.state == STOPPING:
            process.stop()

    def _outcome(self, job: Job, process: JobProcess) -> tuple[str, str]:
        """The state of a job whose process has ended, and why."""
        code, words = process.exit_code(), process.last_words()
        if job.state == STOPPING:
            return CANCELLED, "cancelled; what was measured is kept"
        if code in (0, ALERTS):
            return DONE, "" if code == 0 else "its sentinels found something slower"
        trouble = "its process was killed" if code is None else ""
        if code == EnvironmentTrouble.exit_code:  # its device is taken, its scheduler away, or a disk full
            trouble = words if self._pool.cluster or NO_SPACE in words else self._holder(job)
        return self._again(job, trouble) if trouble else (FAILED, words or f"it ended with exit code {code}")

    def _again(self, job: Job, trouble: str) -> tuple[str, str]:
        """The state of a job that could not run for a reason that may pass, and why."""
        if job.starts >= MOST_STARTS:
            return FAILED, f"{trouble}; it was started {job.starts} times"
        self._not_before_s[job.id] = time.monotonic() + (FLEET_RETRY_S if self._pool.cluster else RETRY_S)
        return QUEUED, f"{trouble}; it is started again and goes on where it stopped"

    # --- those that wait -----------------------------------

    def _obstacle(self, job: Job, running: list[Job]) -> str:
        """Why a job cannot start now; empty if it can."""
        resting = job.why if time.monotonic() < self._not_before_s.get(job.id, 0.0) else ""
        for folder in (self._folder, self._folder_of_database):
            if shutil.disk_usage(folder).free < ROOM_BYTES:
                return f"it waits for {ROOM_BYTES >> 20} MiB of room on the disk of {folder}"
        if self._pool.cluster:
            return f"it waits for job {running[0].id}, which runs on the fleet" if running else resting
        locks = self._locks(job)
        if not locks:
            return f"it waits for the device {job.device}, which this node does not offer now"
        for other in running:
            if locks & self._locks(other):
                return f"it waits for job {other.id}, which runs on {other.device}"
        return resting or self._holder(job)

    def _locks(self, job: Job) -> set[Path]:
        """The locks of a job's devices, each of which one process can hold."""
        return {path for device in self._pool.named(job.device) for path in lock_files(device.info)}

    def _holder(self, job: Job) -> str:
        """Who else holds a job's device; empty if nobody does."""
        holders = (device_holder(device.info) for device in self._pool.named(job.device))
        return next((f"it waits for {holder}" for holder in holders if holder), "")

    def _start(self, job: Job) -> bool:
        """Starts a job, unless it cannot run any more; returns whether it runs."""
        process, left_s = JobProcess(job.id, self._folder), seconds_left(job)
        try:
            if left_s is not None and left_s <= 0:
                raise InputError("it was not reached before its deadline")
            for file in job.asked.get("files", ["of an earlier version"]):
                allowed_file(self._store, file)
            new = {"starts": job.starts + 1, "started_at": job.started_at or utc_now()}
            new |= {} if job.started_at else {"deadline": end_of(job)}
            if not jobs.change(self._store, job.id, [QUEUED], RUNNING, "", **new):
                return False
            process.start(job, self._url, self._pool)
        except InputError as error:
            jobs.change(self._store, job.id, jobs.UNFINISHED, FAILED, str(error))
        except OSError as error:
            state, why = self._again(job, f"its process could not be started: {error}")
            jobs.change(self._store, job.id, jobs.UNFINISHED, state, why)
        else:
            self._processes[job.id] = process
            return True
        return False
