"""A pool of compile workers that run ahead of the device."""

import math
import os
import select
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Rendered
from tuner.devices.machine_load import memory_bytes
from tuner.devices.protocol import Binary
from tuner.results import codec
from tuner.results.measurement import CompileReport, Measurement, Outcome
from tuner.workers.bench import CompiledConfig
from tuner.workers.process import MEMORY_VARIABLE, Worker, WorkerFailed, answered

#: Largest number of compile workers for each device; one takes about 150 MB.
WORKERS_PER_DEVICE = 32
#: Cores left to the study and its search; each device's worker has one of its own.
KEPT_CORES = 1
#: Seconds that a compilation may take.
LIMIT_S = 120.0
#: Largest memory of a compile worker in bytes; less if its share of the machine's memory is less.
MEMORY_BYTES = 24 << 30
#: Bytes that each worker may take, however many there are.
MEMORY_FLOOR_BYTES = 4 << 30
#: A kernel that stores more than this to local memory, per thread, loses to one that does not: on an H200
#: every spilling config of a first GEMM space came last.
MAX_SPILL_BYTES = 512
#: Seconds between two looks at workers that say nothing.
WAIT_S = 0.2
#: Registers are handed out to warps in units of this many per thread (CUDA's occupancy rules since 3.0).
REGISTER_UNIT = 8


@dataclass
class _Job:
    """A source, those who wait for it, each with a launch of its own, and what came of it."""

    rendered: Rendered
    problem: Mapping[str, object]
    tickets: dict[int, Rendered] = field(default_factory=dict)
    crashes: int = 0
    result: CompiledConfig | Measurement | None = None


class CompilePool:
    """Compile workers for one device spec and architecture; they work on one problem after the other.

    A source is compiled once, whoever asks for it.

    Attributes:
        size: Number of workers.
        compiled: Sources compiled so far.
        most_kept: Sources whose machine code is kept, those asked for last; by default more than a short study
            has.
    """

    most_kept: float = 2048

    def __init__(self, spec: str, size: int) -> None:
        """Starts the workers; `take_up` tells what for.

        Args:
            spec: Device spec, see `tuner.devices.protocol.DetectedDevice.opening`.
            size: Number of workers.
        """
        self._spec, self.size = spec, size
        self._idle = [self._start() for _ in range(self.size)]
        self._busy: dict[Worker, _Job] = {}
        self._waiting: deque[_Job] = deque()
        self._ready: dict[int, CompiledConfig | Measurement] = {}
        self._jobs: dict[str, _Job] = {}
        self.compiled = 0

    def _start(self) -> Worker:
        share = max(memory_bytes()[0] // self.size, MEMORY_FLOOR_BYTES)
        # NVRTC's own cache returns code without the compiler's report.
        variables = {"CUDA_CACHE_DISABLE": "1", MEMORY_VARIABLE: str(min(share, MEMORY_BYTES))}
        return Worker("compile", self._spec, variables)

    @property
    def pending(self) -> int:
        """Number of unfinished compilations."""
        return len(self._busy) + len(self._waiting)

    @property
    def channels(self) -> list[Worker]:
        """The workers to wait for."""
        return list(self._busy)

    def take_up(self, problem: Mapping[str, object], architecture: str) -> None:
        """Compiles for this problem and architecture from now on, unless `submit` names another problem."""
        self._problem, self._architecture = dict(problem), architecture
        self._jobs = {}

    def signal(self, number: int) -> None:
        """Sends all workers a signal."""
        for worker in (*self._busy, *self._idle):
            os.kill(worker.pid, number)

    def submit(self, ticket: int, rendered: Rendered, problem: Mapping[str, object] | None = None) -> None:
        """Queues a compilation; `ready` will give it back under the ticket.

        Args:
            ticket: Any number.
            rendered: What to compile; without text it is the library, for which nothing is.
            problem: For another problem than the pool's, of another layout say.
        """
        if not rendered.text:
            self._ready[ticket] = CompiledConfig(rendered, b"", CompileReport())
            return
        job = self._jobs.pop(rendered.hash, None)
        if job is None:
            job = _Job(rendered, dict(problem or self._problem))
            self._waiting.append(job)
        self._jobs[rendered.hash] = job
        if len(self._jobs) > self.most_kept:
            del self._jobs[next(iter(self._jobs))]
        job.tickets[ticket] = rendered
        if job.result is not None:
            self._give_out(job, job.result)
        self._dispatch()

    def _end(self, job: _Job, result: CompiledConfig | Measurement) -> None:
        self.compiled, job.result = self.compiled + 1, result
        self._give_out(job, result)

    def _give_out(self, job: _Job, result: CompiledConfig | Measurement) -> None:
        self._ready |= {ticket: _launched(result, rendered) for ticket, rendered in job.tickets.items()}
        job.tickets.clear()

    def ready(self) -> dict[int, CompiledConfig | Measurement]:
        """Returns the results since the last call: for each ticket the machine code, or why there is none.

        Raises:
            DeviceTrouble: The compiler is not there.
        """
        for worker in [worker for worker in self._busy if worker.arrived()]:
            self._collect(worker, self._busy.pop(worker))
        self._dispatch()
        done, self._ready = self._ready, {}
        return done

    def _dispatch(self) -> None:
        while self._waiting and len(self._busy) < self.size:
            job, worker = self._waiting.popleft(), self._idle.pop() if self._idle else self._start()
            message = {
                "do": "compile", "problem": job.problem, "architecture": self._architecture,
                "rendered": codec.to_json(job.rendered),
            }  # fmt: skip
            try:
                worker.request(message, LIMIT_S)
                self._busy[worker] = job
            except WorkerFailed as failure:
                self._bury(worker, job, failure)

    def _collect(self, worker: Worker, job: _Job) -> None:
        try:
            answer = answered(worker.collect())
        except WorkerFailed as failure:
            self._bury(worker, job, failure)
            return
        if answer.get("spent"):
            worker.close()
        else:
            self._idle.append(worker)
        self._end(job, _result(job.rendered, answer))

    def _bury(self, worker: Worker, job: _Job, failure: WorkerFailed) -> None:
        """Gives up a dead worker. Its job is tried once more, because it may be innocent."""
        worker.close()
        is_slow = failure.outcome is Outcome.TIMED_OUT
        if is_slow or job.crashes:
            outcome = Outcome.TIMED_OUT if is_slow else Outcome.COMPILE_FAILED
            self._end(job, Measurement(outcome, f"while compiling, {failure}"))
        else:
            job.crashes += 1
            self._waiting.append(job)

    def cancel(self) -> None:
        """Drops all results and what is unfinished; workers in the middle of a compilation are killed."""
        for worker in self._busy:
            worker.close()
        self._busy.clear()
        self._waiting.clear()
        self._ready.clear()
        self._jobs = {name: job for name, job in self._jobs.items() if job.result is not None}

    def results(self, rendered: Mapping[int, Rendered]) -> dict[int, CompiledConfig | Measurement]:
        """Compiles several configs and waits for all of them: the machine code, or why there is none.

        Raises:
            DeviceTrouble: The compiler is not there.
        """
        for ticket, text in rendered.items():
            self.submit(ticket, text)
        results = self.ready()
        while not results.keys() >= rendered.keys():
            select.select(self.channels, [], [], WAIT_S)
            results |= self.ready()
        return {ticket: results[ticket] for ticket in rendered}

    def compile_all(self, rendered: Mapping[int, Rendered]) -> dict[int, CompiledConfig]:
        """The machine code of several configs, without those that fail; see `results`."""
        codes = self.results(rendered).items()
        return {ticket: code for ticket, code in codes if isinstance(code, CompiledConfig)}

    def close(self) -> None:
        """Kills the workers."""
        for worker in (*self._busy, *self._idle):
            worker.close()
        self._busy, self._idle = {}, []


def _result(rendered: Rendered, answer: Mapping[str, Any]) -> CompiledConfig | Measurement:
    """What a worker's answer says of a kernel."""
    compile_s = answer["compile_s"]
    if "failed" in answer:
        return Measurement(Outcome.COMPILE_FAILED, answer["failed"], stages_s={"compile": compile_s})
    binary = codec.from_json(Binary, answer["binary"])
    return CompiledConfig(rendered, binary.code, binary.report, compile_s)


def _launched(result: CompiledConfig | Measurement, rendered: Rendered) -> CompiledConfig | Measurement:
    """What is known of a source, with a launch of its own."""
    if isinstance(result, Measurement):
        return result
    report = replace(result.compiled, launch_hash=rendered.launch_hash)
    return replace(result, rendered=rendered, compiled=report)


def workers_for(cores: int, devices: int) -> int:
    """Returns the number of compile workers for this many cores, minus those for study and devices.

    If there are few cores, workers share them with study and devices.
    """
    kept = KEPT_CORES + devices
    return max(1, min(WORKERS_PER_DEVICE * devices, cores - kept if cores > 2 * kept else cores))


def ruled_out(compiled_config: CompiledConfig, device: DeviceInfo) -> Measurement | None:
    """Returns the reason why the compiler's report rules a config out before it costs device time, or None."""
    report, launch = compiled_config.compiled, compiled_config.rendered.launch
    if launch is None:
        return None
    threads = math.prod(launch.block)
    registers = threads * -(-report.registers // REGISTER_UNIT) * REGISTER_UNIT
    stages = {"compile": compiled_config.compile_s}
    if device.registers_per_block and registers > device.registers_per_block:
        reason = (
            f"a block has at most {device.registers_per_block} registers, {threads} threads of "
            f"{report.registers} need {registers}"
        )
        return Measurement(Outcome.LAUNCH_FAILED, reason, compiled=report, stages_s=stages)
    if report.spill_bytes > MAX_SPILL_BYTES:
        reason = f"cannot win: spills {report.spill_bytes} bytes a thread"
        return Measurement(Outcome.PRUNED, reason, compiled=report, stages_s=stages)
    return None
