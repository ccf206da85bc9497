"""Processes of jobs: started, found again, interrupted; each is a `tuner` command in a folder of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from tuner.devices.settings import cache_root
from tuner.night.plan.items import clock_time, seconds_until
from tuner.service.offer import ClusterChoice
from tuner.store.jobs import Job
from tuner.study.job_files import SPENT, VARIABLE

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
