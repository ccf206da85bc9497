"""A pool of compile workers that run ahead of the device."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Rendered
from tuner.devices.machine_load import memory_bytes
from tuner.results.measurement import CompileReport, Measurement, Outcome
from tuner.workers.bench import CompiledConfig
from tuner.workers.process import MEMORY_VARIABLE, Worker, WorkerFailed, answered

#: Largest number of compile workers for each device; one takes about 150 MB.
WORKERS_PER_DEVICE = 32
#: Cores left to the study and its search; each device's worker has one of its own.
KEPT_CORES = 1
#: A compilation may take this multiple of this quantile of the earlier ones...
LIMIT_FACTOR, SLOW_END = 10.0, 0.95
#: ...but always this long, in seconds.
LIMIT_FLOOR_S = 60.0
#: Largest memory of a compile worker in bytes; less if its share of the machine's memory is less.
MEMORY_BYTES = 24 << 30
#: Bytes that each worker may take, however many there are.
MEMORY_FLOOR_BYTES = 4 << 30
#: A kernel that stores more than this to local memory, per thread, loses to one that does not: on an H200
#: every spilling config of a first GEMM space came last.
MAX_SPILL_BYTES = 512
#: Registers are handed out to warps in units of this many per thread (CUDA's occupancy rules since 3.0).
REGISTER_UNIT = 8


@dataclass(frozen=True)
class Compiled:
    """The result of one compilation.

    Attributes:
        ticket: The caller's ticket.
        compiled_config: The compiled config; None if compiling failed.
        failure: The failure as a measurement; None if there was none.
    """

    ticket: int
    compiled_config: CompiledConfig | None
    failure: Measurement | None

    @property
    def compile_s(self) -> float:
        """Seconds that it took."""
        if self.compiled_config is not None:
            return self.compiled_config.compile_s
        return self.failure.stages_s.get("compile", 0.0) if self.failure else 0.0


@dataclass
class _Job:
    ticket: int
    rendered: Rendered
    problem: Mapping[str, object]
    crashes: int = 0


@dataclass
class _Slot:
    """A worker, or the place of one; a busy one without a job compiles what nobody waits for."""

    worker: Worker | None
    job: _Job | None = None

    @property
    def is_busy(self) -> bool:
        return self.worker is not None and self.worker.busy

    def retire(self) -> None:
        """Ends the worker; another one starts when there is a job."""
        if self.worker is not None:
            self.worker.close()
        self.worker = self.job = None


class CompilePool:
    """Compile workers for one device spec and architecture; they work on one problem after the other."""

    def __init__(self, spec: str, architecture: str, problem: Mapping[str, object], size: int = 0) -> None:
        """Starts the workers.

        Args:
            spec: Device spec, see `tuner.devices.detect.compiler_for`.
            architecture: Architecture to compile for.
            problem: Names the problem (`tuner.workers.main.problem_from`).
            size: Number of workers; by default `workers_for` the available cores and one device.
        """
        self._spec, self._architecture = spec, architecture
        self.take_up(problem)
        self.size = size or workers_for(len(os.sched_getaffinity(0)), 1)
        self._slots = [_Slot(self._start()) for _ in range(self.size)]
        self._waiting: deque[_Job] = deque()
        self._ready: list[Compiled] = []
        self._took_s: deque[float] = deque(maxlen=200)

    def _start(self) -> Worker:
        share = max(memory_bytes()[0] // self.size, MEMORY_FLOOR_BYTES)
        # NVRTC's own cache returns code without the compiler's report.
        variables = {"CUDA_CACHE_DISABLE": "1", MEMORY_VARIABLE: str(min(share, MEMORY_BYTES))}
        return Worker("compile", self._spec, variables)

    @property
    def pending(self) -> int:
        """Number of unfinished compilations that somebody waits for."""
        return sum(slot.job is not None for slot in self._slots) + len(self._waiting)

    @property
    def channels(self) -> list[Worker]:
        """The workers to wait for."""
        return [slot.worker for slot in self._slots if slot.worker is not None and slot.is_busy]

    def take_up(self, problem: Mapping[str, object]) -> None:
        """Compiles for this problem from now on, unless `submit` names another."""
        self._problem = dict(problem)

    def submit(self, ticket: int, rendered: Rendered, problem: Mapping[str, object] | None = None) -> None:
        """Queues a compilation; `ready` will give it back under the ticket.

        Args:
            ticket: Any number.
            rendered: What to compile.
            problem: For another problem than the pool's, of another layout say.
        """
        self._waiting.append(_Job(ticket, rendered, dict(problem or self._problem)))
        self._dispatch()

    def ready(self) -> list[Compiled]:
        """Returns the results since the last call.

        Raises:
            DeviceTrouble: The compiler is not there.
        """
        for slot in self._slots:
            if slot.worker is not None and slot.worker.arrived():
                self._collect(slot, slot.worker)
        self._dispatch()
        done, self._ready = self._ready, []
        return done

    def _dispatch(self) -> None:
        for slot in self._slots:
            while self._waiting and not slot.is_busy:
                slot.job = self._waiting.popleft()
                slot.worker = slot.worker or self._start()
                message = {
                    "do": "compile", "problem": slot.job.problem, "architecture": self._architecture,
                    "rendered": asdict(slot.job.rendered),
                }  # fmt: skip
                try:
                    slot.worker.request(message, compile_limit_s(self._took_s))
                except WorkerFailed as failure:
                    self._bury(slot, failure)

    def _collect(self, slot: _Slot, worker: Worker) -> None:
        try:
            answer = answered(worker.collect())
        except WorkerFailed as failure:
            self._bury(slot, failure)
            return
        (job, slot.job), compile_s = (slot.job, None), answer["compile_s"]
        self._took_s.append(compile_s)
        if answer.get("spent"):
            slot.retire()
        if job is None:
            return
        if "failed" in answer:
            failed = Measurement(Outcome.COMPILE_FAILED, answer["failed"], stages_s={"compile": compile_s})
            self._ready.append(Compiled(job.ticket, None, failed))
            return
        report = replace(CompileReport(**answer["compiled"]), launch_hash=job.rendered.launch_hash)
        compiled_config = CompiledConfig(job.rendered, answer["code"], report, compile_s)
        self._ready.append(Compiled(job.ticket, compiled_config, None))

    def _bury(self, slot: _Slot, failure: WorkerFailed) -> None:
        """Gives up a dead worker. Its job is tried once more, because it may be innocent."""
        job = slot.job
        slot.retire()
        if job is not None and (failure.timed_out or job.crashes):
            outcome = Outcome.TIMED_OUT if failure.timed_out else Outcome.COMPILE_FAILED
            reason = f"while compiling, {failure}"
            self._ready.append(Compiled(job.ticket, None, Measurement(outcome, reason)))
        elif job is not None:
            job.crashes += 1
            self._waiting.append(job)

    def abandon(self) -> None:
        """Drops all results and what waits; workers in the middle of a compilation end it for nobody."""
        self._waiting.clear()
        self._ready.clear()
        for slot in self._slots:
            slot.job = None

    def cancel(self) -> None:
        """Drops all results and what is unfinished; workers in the middle of a compilation are killed."""
        for slot in self._slots:
            if slot.job is not None:
                slot.retire()
        self.abandon()

    def compile_all(self, rendered: Mapping[int, Rendered]) -> dict[int, CompiledConfig]:
        """Compiles several configs and waits for all of them; those that fail are left out.

        Raises:
            DeviceTrouble: The compiler is not there.
        """
        for ticket, text in rendered.items():
            self.submit(ticket, text)
        configs: dict[int, CompiledConfig] = {}
        missing = set(rendered)
        while missing:
            for compiled in self.ready():
                missing.discard(compiled.ticket)
                if compiled.compiled_config is not None and compiled.ticket in rendered:
                    configs[compiled.ticket] = compiled.compiled_config
            time.sleep(0.005)
        return configs

    def close(self) -> None:
        """Kills the workers."""
        for slot in self._slots:
            slot.retire()


def workers_for(cores: int, devices: int) -> int:
    """Returns the number of compile workers for this many cores, minus those for study and devices.

    If there are few cores, workers share them with study and devices.
    """
    kept = KEPT_CORES + devices
    return max(1, min(WORKERS_PER_DEVICE * devices, cores - kept if cores > 2 * kept else cores))


def compile_limit_s(took_s: Iterable[float]) -> float:
    """Returns the seconds that a compilation may take, from the seconds of earlier ones."""
    took = sorted(took_s)
    slow = took[int(SLOW_END * (len(took) - 1))] if took else 0.0
    return max(LIMIT_FLOOR_S, LIMIT_FACTOR * slow)


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
