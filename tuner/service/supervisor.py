"""Runs the jobs of a node: one for each device, the others wait. States are stored, so a restart loses none."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from tuner.declare.hardware import DeviceInfo
from tuner.devices.device_lock import device_holder
from tuner.devices.settings import cache_root
from tuner.errors import EnvironmentTrouble, InputError, TunerError
from tuner.night.plan.items import clock_time, seconds_until
from tuner.results.record import utc_now
from tuner.service import job_queue
from tuner.service.job_queue import fair, node
from tuner.service.pool import ClusterChoice, DevicePool
from tuner.store import Store, jobs
from tuner.store.jobs import CANCELLED, DONE, FAILED, QUEUED, RUNNING, STOPPING, Job
from tuner.study.job_files import SPENT, VARIABLE
from tuner.study.locks import Occupancy

#: Largest file of a job that is read back, in bytes: the report of a plan of 10,000 problems has 20 MB.
LARGEST_BYTES = 64 << 20
#: Seconds that a job is given at the least, so that it comes to a report.
LEAST_S = 1.0
#: Characters of what a failed job said last.
LONGEST_WHY = 2000


class JobProcess:
    """The process of one job, whoever started it: this server, or one before it."""

    def __init__(self, job: Job, folder: Path | None = None) -> None:
        """Names the job's folder.

        Args:
            job: The job.
            folder: Folder of all jobs; one in the cache when None.
        """
        self.folder = (folder or cache_root() / "service" / "jobs") / job.id
        self._child: subprocess.Popen[bytes] | None = None
        self._seen: tuple[int, int] = (0, 0)

    def start(self, job: Job, url: str, cluster: ClusterChoice | None = None) -> None:
        """Starts the process.

        Args:
            job: The job.
            url: The database.
            cluster: Where the job runs; on this machine when None.

        Raises:
            OSError: It cannot be started, or its folder not be made.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        left_s = seconds_left(job)
        if cluster is not None:
            (self.folder / "plan.toml").write_text(cluster.plan_text(job, left_s), encoding="utf-8")
        elif job.asked["kind"] == "plan":
            (self.folder / "plan.toml").write_text(job.asked["plan"], encoding="utf-8")
        command = cluster.arguments(job, self.folder, left_s) if cluster else arguments(job, self.folder)
        # The URL may hold a password, and all users can see arguments.
        environment = os.environ | {"TUNER_DB": url, VARIABLE: str(self.folder), SPENT: str(spent_s(job))}
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "tuner", *command], env=environment,
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip

    @property
    def runs(self) -> bool:
        """True while the process is there."""
        if self._child is not None:
            return self._child.poll() is None
        return self._found() is not None

    def exit_code(self) -> int | None:
        """How it ended by its own account; None if it did not come to say so: it was killed."""
        told = self._read("exit")
        if told is not None:
            return int(told["code"])
        code = self._child.poll() if self._child is not None else None
        return code if code is not None and code >= 0 else None

    def progress(self) -> Mapping[str, Any] | None:
        """How far it is; None if it has said nothing new."""
        with contextlib.suppress(OSError):
            seen = (self.folder / "progress").stat()
            state = seen.st_mtime_ns, seen.st_size
            if state != self._seen:
                self._seen = state
                told: Mapping[str, Any] | None = self._read("progress")
                return told
        return None

    def report(self) -> Any:
        """What it printed; None if that is no JSON."""
        with contextlib.suppress(OSError, ValueError):
            path = self.folder / "out"
            if path.stat().st_size <= LARGEST_BYTES:
                return json.loads(path.read_text(encoding="utf-8"))
        return None

    def last_words(self) -> str:
        """Its messages at the end."""
        with contextlib.suppress(OSError):
            text = (self.folder / "err").read_text(encoding="utf-8", errors="replace")
            at = text.rfind("tuner: ")
            return (text[at + len("tuner: ") :] if at >= 0 else text[-LONGEST_WHY:]).strip()[:LONGEST_WHY]
        return ""

    def interrupt(self) -> None:
        """Asks it to end in an orderly way: what was measured is kept."""
        self._send(signal.SIGINT)

    def kill(self) -> None:
        """Ends it and the processes that it started, at once."""
        found = self._found()
        if found is not None:
            with contextlib.suppress(OSError, psutil.Error):
                for each in (*found.children(recursive=True), found):
                    each.kill()
        elif self._child is not None:
            self._child.kill()

    def forget(self) -> None:
        """Removes its folder."""
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(1)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _send(self, number: int) -> None:
        with contextlib.suppress(OSError, psutil.Error):
            if self._child is not None:
                self._child.send_signal(number)
            elif (found := self._found()) is not None:
                found.send_signal(number)

    def _found(self) -> psutil.Process | None:
        """The process that the folder names, if it is that one: numbers of processes are used again."""
        told = self._read("process")
        if told is None:
            return self._unannounced()
        with contextlib.suppress(psutil.Error, KeyError, TypeError):
            process = psutil.Process(told["pid"])
            same = abs(process.create_time() - told["started"]) < 1.0
            if same and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None

    def _unannounced(self) -> psutil.Process | None:
        """The process, if it has not come to name itself: whoever started it may have ended in that moment."""
        found = []
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if each.environ().get(VARIABLE) == str(self.folder):
                    found.append((each.create_time(), each.pid, each))
        return min(found)[2] if found else None  # the first: what it starts inherits its environment

    def _read(self, name: str) -> Any:
        with contextlib.suppress(OSError, ValueError):
            return json.loads((self.folder / name).read_text(encoding="utf-8"))
        return None


def arguments(job: Job, folder: Path) -> list[str]:
    """The command of a job: every value in it was checked when it was submitted."""
    asked, left_s = job.asked, seconds_left(job)
    seconds = [f"--seconds={left_s:.3f}"] if left_s is not None else []
    shared = [f"--device={job.device}", "--json", *seconds]
    if asked["kind"] == "plan":
        return ["nightly", str(folder / "plan.toml"), *shared]
    told = asked["problem"]
    dims = [f"--set={name}={size}" for name, size in told["shape"].items()]
    chosen = {"dtype": told["dtype"], "layout": told["layout"], "precision": told["precision"]}
    chosen["epilogue"] = told.get("epilogue", "")
    options = [f"--{name}={value}" for name, value in chosen.items() if value]
    kernels = [f"--kernel={name}" for name in told["kernels"]]
    trials = [f"--trials={asked['trials']}"] if asked["trials"] else []
    target = [told["file"] or told["operation"]]
    return ["tune", *target, *dims, *options, f"--regime={told['regime']}", *kernels, *trials, *shared]


def seconds_left(job: Job) -> float | None:
    """Seconds that a job may still take: of its budget, and until its deadline; None for no limit."""
    asked, limits = job.asked, []
    budget_s = asked["seconds"] or asked.get("plan_seconds")
    if budget_s:
        limits.append(max(LEAST_S, budget_s - spent_s(job)))
    if asked.get("until") and job.started_at:
        limits.append(max(LEAST_S, _seconds_until(asked["until"], job.started_at)))
    if job.deadline:
        left = datetime.fromisoformat(job.deadline) - datetime.now(UTC)
        limits.append(left.total_seconds())
        if asked["kind"] == "problem" and not asked["seconds"] and not asked["trials"]:
            limits.append(60.0)
    return min(limits, default=None)


def spent_s(job: Job) -> float:
    """Seconds that a job has run, in all processes that it had."""
    return float(job.progress.get("spent_s", 0.0))


def _seconds_until(clock: str, started_at: str) -> float:
    """Seconds until a clock of this machine first shows a time of day after a job was first started."""
    started = datetime.fromisoformat(started_at).astimezone().replace(tzinfo=None)
    ends_s = started.timestamp() + seconds_until(clock_time(clock), started)
    return ends_s - datetime.now().timestamp()


def overlapping(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """True if devices share one that can be locked only once."""
    from tuner.devices.device_lock import lock_files

    locks = {path for each in one for path in lock_files(each.info)}
    return any(path in locks for each in other for path in lock_files(each.info))


#: Seconds between two looks at processes and queue.
LOOK_EVERY_S = 0.25
#: Seconds between two notes of a job's progress.
PROGRESS_EVERY_S = 1.0
#: A job that was interrupted is interrupted again, and killed, after so many seconds.
AGAIN_S, KILL_S = 20.0, 60.0
#: A job that runs so many seconds beyond its deadline is interrupted.
GRACE_S = 60.0
#: A job whose process was killed is started again, so often.
MOST_STARTS = 20
#: Seconds before a job whose device was taken is tried again.
RETRY_S = 2.0
#: The same for a fleet that cannot be reached, or that another coordinator has.
FLEET_RETRY_S = 15.0
#: Exit code of a night whose sentinels have found something.
ALERTS = 4

_LOG = logging.getLogger(__name__)


class JobSupervisor:
    """Starts, watches and ends the processes of jobs, in a thread of its own.

    Of several servers of one machine with one database, one runs the jobs: two would each take the other's
    processes for their own. When it ends, however it does, the next one takes over.
    """

    def __init__(self, store: Store, url: str, pool: DevicePool, folder: Path | None = None) -> None:
        """Takes over the jobs that an earlier server has left, whether their processes are still there or not.

        Args:
            store: The database.
            url: Its URL, for the processes.
            pool: The devices of this node.
            folder: Folder of the jobs' files; one in the cache when None.
        """
        self._store, self._url, self._pool, self._folder = store, url, pool, folder
        self._processes: dict[str, JobProcess] = {}
        self._interrupted: dict[str, tuple[float, int]] = {}
        self._told_s: dict[str, float] = {}
        self._not_before_s: dict[str, float] = {}
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Looks at once: a job was submitted or cancelled."""
        self._wake.set()

    def close(self) -> None:
        """Ends the thread. Processes go on; the next server finds them."""
        self._stopped.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        complained, turn = (
            "",
            DeviceInfo("the jobs of this machine", "jobs", uuid=f"jobs of {node()}"),
        )
        with contextlib.ExitStack() as held:
            has_turn = False
            while not self._stopped.is_set():
                try:
                    if not has_turn:
                        held.enter_context(Occupancy(self._url, turn, "tuner serve"))
                        has_turn = True
                    self.look()
                    complained = ""
                except (TunerError, OSError) as error:
                    if str(error) != complained:
                        complained = str(error)
                        _LOG.warning("jobs wait: %s", error)
                self._wake.wait(LOOK_EVERY_S)
                self._wake.clear()

    def look(self) -> None:
        """Looks at every unfinished job once.

        Raises:
            StoreTrouble: The database cannot be used.
        """
        unfinished = jobs.unfinished(self._store, job_queue.node())
        for job in unfinished:
            if job.state != QUEUED:
                self._watch(job)
        waiting = [job for job in unfinished if job.state == QUEUED]
        if waiting:
            running = [job for job in jobs.unfinished(self._store, job_queue.node()) if job.state != QUEUED]
            self._start_some(waiting, running)

    # --- those that run ------------------------------------

    def _watch(self, job: Job) -> None:
        process = self._processes.setdefault(job.id, JobProcess(job, self._folder))
        now_s = time.monotonic()
        runs = process.runs  # before the last progress is read
        if now_s - self._told_s.get(job.id, 0.0) >= PROGRESS_EVERY_S or not runs:
            told = process.progress()
            if told is not None:
                self._told_s[job.id] = now_s
                jobs.progressed(self._store, job, told)
        if not runs:
            self._ended(job, process)
        elif job.state == STOPPING or _is_late(job):
            self._stop(job, process, now_s)

    def _stop(self, job: Job, process: JobProcess, now_s: float) -> None:
        """Interrupts a process; if that does not help, again; then kills it."""
        first_s, times = self._interrupted.get(job.id, (now_s, 0))
        if times == 0 or (times == 1 and now_s - first_s > AGAIN_S):
            process.interrupt()
            times += 1
        elif now_s - first_s > KILL_S:
            process.kill()
        self._interrupted[job.id] = first_s, times

    def _ended(self, job: Job, process: JobProcess) -> None:
        code, report = process.exit_code(), process.report()
        if job.state == STOPPING:
            self._finish(job, CANCELLED, "cancelled; what was measured is kept", report)
        elif code in (0, ALERTS):
            self._finish(job, DONE, "" if code == 0 else "its sentinels found something slower", report)
        elif code is None:
            self._again(job, "its process was killed")
        elif job.id in self._interrupted:
            self._finish(job, DONE, "it was ended at its deadline; what was measured is kept", report)
        elif code == EnvironmentTrouble.exit_code and (why := self._passing(job, process)):
            self._not_before_s[job.id] = time.monotonic() + (FLEET_RETRY_S if self._pool.cluster else RETRY_S)
            self._again(job, why)
        else:
            self._finish(job, FAILED, process.last_words() or f"it ended with exit code {code}", report)
        process.forget()
        for kept in (self._processes, self._interrupted, self._told_s):
            kept.pop(job.id, None)

    def _passing(self, job: Job, process: JobProcess) -> str:
        """The trouble of a job, if it may pass: its device is taken, its scheduler away; else empty."""
        return process.last_words() if self._pool.cluster is not None else self._holder(job)

    def _finish(self, job: Job, state: str, why: str, report: Any) -> None:
        jobs.change(
            self._store, job.id, [RUNNING, STOPPING], state, {"why": why}, why=why, report=report, process={}
        )

    def _again(self, job: Job, why: str) -> None:
        """Puts a job back into the queue; its study goes on where it stopped."""
        if job.starts >= MOST_STARTS:
            self._finish(job, FAILED, f"{why}; it was started {job.starts} times", None)
            return
        said = f"{why}; it is started again and goes on where it stopped"
        jobs.change(self._store, job.id, [RUNNING], QUEUED, {"why": said}, why=said, process={})

    # --- those that wait -----------------------------------

    def _start_some(self, waiting: list[Job], running: list[Job]) -> None:
        """Starts what can start, in the fair order; says of the others why they wait."""
        for job in fair(waiting, jobs.last_starts(self._store, job_queue.node())):
            why = self._obstacle(job, running)
            if not why and self._start(job):
                running.append(job)
            elif why and why != job.why:
                jobs.note(self._store, job.id, why)

    def _obstacle(self, job: Job, running: list[Job]) -> str:
        """Why a job cannot start now; empty if it can."""
        if self._pool.cluster is not None:
            first = next((f"it waits for job {other.id}, which runs on the fleet" for other in running), "")
            return first or self._resting(job)
        if job.device not in self._pool.devices:
            return f"it waits for the device {job.device}, which this node does not offer now"
        mine = self._pool.devices[job.device]
        for other in running:
            theirs = self._pool.devices.get(other.device, ())
            if overlapping(mine, theirs):
                return f"it waits for job {other.id}, which runs on {other.device}"
        return self._resting(job) or self._holder(job)

    def _resting(self, job: Job) -> str:
        """Why a job that has met trouble is not yet tried again; empty if it is."""
        return job.why if time.monotonic() < self._not_before_s.get(job.id, 0.0) else ""

    def _holder(self, job: Job) -> str:
        """Who else holds a job's device; empty if nobody does."""
        for each in self._pool.devices.get(job.device, ()):
            holder = device_holder(each.info)
            if holder:
                return f"it waits for {holder}"
        return ""

    def _start(self, job: Job) -> bool:
        left_s = seconds_left(job)
        if left_s is not None and left_s <= 0:
            jobs.change(self._store, job.id, [QUEUED], FAILED, why="it was not reached before its deadline")
            return False
        try:
            self._check_files(job)
        except InputError as error:
            jobs.change(self._store, job.id, [QUEUED], FAILED, {"why": str(error)}, why=str(error))
            return False
        process = JobProcess(job, self._folder)
        started_at = job.started_at or utc_now()
        again = {"starts": job.starts + 1, "started_at": started_at, "why": ""}
        if not jobs.change(self._store, job.id, [QUEUED], RUNNING, {"starts": job.starts + 1}, **again):
            return False
        self._processes[job.id] = process
        try:
            process.start(job, self._url, self._pool.cluster)
        except OSError as error:
            self._finish(job, FAILED, f"its process could not be started: {error}", None)
            return False
        return True

    def _check_files(self, job: Job) -> None:
        """Checks again that the kernel files of a job are allowed, and are as they were then.

        Raises:
            InputError: One is not.
        """
        asked = job.asked
        if asked["kind"] == "problem" and asked["problem"]["file"]:
            job_queue.checked(self._store, asked["problem"]["file"])
        elif asked["kind"] == "plan":
            import tomllib

            document = tomllib.loads(asked["plan"])
            for table in (*document.get("problems", ()), *document.get("surveys", ())):
                if "file" in table:
                    job_queue.checked(self._store, table["file"])


def _is_late(job: Job) -> bool:
    """True if a job runs on well after its deadline."""
    left_s = seconds_left(job) if job.deadline else None
    return left_s is not None and left_s < -GRACE_S
