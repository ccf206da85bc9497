"""Runs the jobs of a node: one for each device, the others wait. States are stored, so a restart loses none."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from pathlib import Path
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.devices.device_lock import device_holder
from tuner.errors import EnvironmentTrouble, InputError, TunerError
from tuner.results.record import utc_now
from tuner.service import job_queue as allowed
from tuner.service.job_processes import JobProcess, overlapping, seconds_left
from tuner.service.job_queue import fair, node
from tuner.service.offer import Offer
from tuner.store import Store, jobs
from tuner.store.jobs import CANCELLED, DONE, FAILED, QUEUED, RUNNING, STOPPING, Job
from tuner.study.locks import Occupancy

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


class Runner:
    """Starts, watches and ends the processes of jobs, in a thread of its own.

    Of several servers of one machine with one database, one runs the jobs: two would each take the other's
    processes for their own. When it ends, however it does, the next one takes over.
    """

    def __init__(self, store: Store, url: str, offer: Offer, folder: Path | None = None) -> None:
        """Takes over the jobs that an earlier server has left, whether their processes are still there or not.

        Args:
            store: The database.
            url: Its URL, for the processes.
            offer: The devices of this node.
            folder: Folder of the jobs' files; one in the cache when None.
        """
        self._store, self._url, self._offer, self._folder = store, url, offer, folder
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
        unfinished = jobs.unfinished(self._store, allowed.node())
        for job in unfinished:
            if job.state != QUEUED:
                self._watch(job)
        waiting = [job for job in unfinished if job.state == QUEUED]
        if waiting:
            running = [job for job in jobs.unfinished(self._store, allowed.node()) if job.state != QUEUED]
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
            self._not_before_s[job.id] = time.monotonic() + (FLEET_RETRY_S if self._offer.cluster else RETRY_S)
            self._again(job, why)
        else:
            self._finish(job, FAILED, process.last_words() or f"it ended with exit code {code}", report)
        process.forget()
        for kept in (self._processes, self._interrupted, self._told_s):
            kept.pop(job.id, None)

    def _passing(self, job: Job, process: JobProcess) -> str:
        """The trouble of a job, if it may pass: its device is taken, its scheduler away; else empty."""
        return process.last_words() if self._offer.cluster is not None else self._holder(job)

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
        for job in fair(waiting, jobs.last_starts(self._store, allowed.node())):
            why = self._obstacle(job, running)
            if not why and self._start(job):
                running.append(job)
            elif why and why != job.why:
                jobs.note(self._store, job.id, why)

    def _obstacle(self, job: Job, running: list[Job]) -> str:
        """Why a job cannot start now; empty if it can."""
        if self._offer.cluster is not None:
            first = next((f"it waits for job {other.id}, which runs on the fleet" for other in running), "")
            return first or self._resting(job)
        if job.device not in self._offer.devices:
            return f"it waits for the device {job.device}, which this node does not offer now"
        mine = self._offer.devices[job.device]
        for other in running:
            theirs = self._offer.devices.get(other.device, ())
            if overlapping(mine, theirs):
                return f"it waits for job {other.id}, which runs on {other.device}"
        return self._resting(job) or self._holder(job)

    def _resting(self, job: Job) -> str:
        """Why a job that has met trouble is not yet tried again; empty if it is."""
        return job.why if time.monotonic() < self._not_before_s.get(job.id, 0.0) else ""

    def _holder(self, job: Job) -> str:
        """Who else holds a job's device; empty if nobody does."""
        for each in self._offer.devices.get(job.device, ()):
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
            process.start(job, self._url, self._offer.cluster)
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
            allowed.checked(self._store, asked["problem"]["file"])
        elif asked["kind"] == "plan":
            import tomllib

            document = tomllib.loads(asked["plan"])
            for table in (*document.get("problems", ()), *document.get("surveys", ())):
                if "file" in table:
                    allowed.checked(self._store, table["file"])


def _is_late(job: Job) -> bool:
    """True if a job runs on well after its deadline."""
    left_s = seconds_left(job) if job.deadline else None
    return left_s is not None and left_s < -GRACE_S
