"""The device worker of a study: measures configs and the library, whatever a config does to its process."""

from __future__ import annotations

import os
import select
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any

from tuner.declare.launch import Launch
from tuner.devices.detect import DetectedDevice, kind_of
from tuner.errors import DeviceTrouble
from tuner.results.measurement import Measurement, Outcome
from tuner.results.sentinel import Terms
from tuner.workers.bench import CompiledConfig
from tuner.workers.compile_pool import CompilePool, workers_for
from tuner.workers.kept_worker import LONG_LIMIT_S, KeptWorker, fresh_seed
from tuner.workers.main import rendered_to_json
from tuner.workers.process import WorkerFailed
from tuner.workers.sentinel_bench import Turns

#: The first run of a config may take this multiple of the best config's time, and at least these seconds,
#: because replacing the worker takes time, too.
FIRST_LIMIT_FACTOR, FIRST_LIMIT_FLOOR_S = 10.0, 2.0
#: All work on a config may take this multiple of the best config's time...
LIMIT_FACTOR = 300.0
#: ...but always this long, in seconds: the first run of a config also loads and verifies it.
LIMIT_FLOOR_S = 10.0


def run_limit_s(best_s: float | None) -> float:
    """Returns the seconds that a config may take, given the best config's time, if one was measured."""
    return max(LIMIT_FLOOR_S, LIMIT_FACTOR * (best_s or 0.1))


def first_limit_s(best_s: float | None) -> float | None:
    """Returns the seconds that a config's first run may take; None for no limit of its own."""
    return None if best_s is None else max(FIRST_LIMIT_FLOOR_S, FIRST_LIMIT_FACTOR * best_s)


class DeviceWorker(KeptWorker):
    """One device, on which configs are measured."""

    _first_limit_s: float | None = None

    def baseline(self) -> Measurement | None:
        """Measures the library; None if the operation declares none."""
        data = self.trusted({"do": "baseline"})["measurement"]
        return Measurement.from_json(data) if data else None

    def begin(
        self, compiled_config: CompiledConfig, incumbent_s: float | None, limit_s: float | None = None
    ) -> None:
        """Begins to measure a config; `finish` returns the result.

        Args:
            compiled_config: What to measure.
            incumbent_s: Best median so far in seconds; a config that cannot win against it is pruned.
            limit_s: Seconds that it may take; by default a multiple of the incumbent's time.
        """
        if limit_s is None:
            limit_s = run_limit_s(incumbent_s)
        self._first_limit_s = first_limit_s(incumbent_s)
        message = {
            "do": "measure", "incumbent_s": incumbent_s, "first_limit_s": self._first_limit_s,
            **to_json(compiled_config),
        }  # fmt: skip
        try:
            self.channel.request(message, compiled_config.code, limit_s)
        except WorkerFailed:
            # The worker was dead before the request: not this config's fault.
            self.replace()
            self.channel.request(message, compiled_config.code, limit_s)

    def arrived(self) -> bool:
        """True if `finish` will not wait long."""
        return self.busy and (self.channel.overdue() or bool(select.select([self.channel], [], [], 0)[0]))

    def finish(self) -> Measurement:
        """Returns the measurement that `begin` started.

        A worker that crashed, hung or reported a poisoned context has been replaced.

        Raises:
            DeviceTrouble: The device stays unwell.
        """
        try:
            data = self.channel.collect(0.01 if self.channel.overdue() else 30.0).data
        except WorkerFailed as failure:
            self.replace()
            if failure.alarmed and self._first_limit_s is not None:
                reason = f"its first run did not end in time: stopped after {self._first_limit_s:.3g} s"
                return Measurement(Outcome.TIMED_OUT, reason)
            return Measurement(Outcome.TIMED_OUT if failure.timed_out else Outcome.CRASHED, str(failure))
        if "trouble" in data:
            self.replace()
            return Measurement(Outcome.CRASHED, data["trouble"])
        measurement = Measurement.from_json(data["measurement"])
        if data["unwell"]:
            self.replace()
        return measurement

    def verify(
        self, compiled_config: CompiledConfig, cases: Sequence[tuple[Mapping[str, Any], Launch | None]]
    ) -> str:
        """Checks a compiled config at other shapes.

        Args:
            compiled_config: The config to check.
            cases: Problems by name, each with the launch for it.

        Returns:
            What is wrong; empty if nothing is. A worker that crashed or hung has been replaced.
        """
        named = [{"problem": dict(problem), "launch": launch and asdict(launch)} for problem, launch in cases]
        message = {"do": "verify", "cases": named, "seed": fresh_seed(), **to_json(compiled_config)}
        limit_s = LIMIT_FLOOR_S * (1 + len(cases))
        try:
            data = self.channel.ask(message, compiled_config.code, limit_s).data
        except WorkerFailed as failure:
            self.replace()
            return str(failure)
        if "trouble" in data or data["unwell"]:
            self.replace()
        return str(data.get("trouble") or data["wrong"])

    def finals(
        self, compiled_configs: Sequence[CompiledConfig], budget_s: float, threads: Sequence[int] = ()
    ) -> list[Measurement]:
        """Measures finalists interleaved with the library, whose measurements come last.

        If the worker does not survive, each finalist runs alone to find the culprit, and the others play again.

        Args:
            compiled_configs: The finalists.
            budget_s: Wall time for the rounds in seconds.
            threads: Numbers of CPU threads that they use; see `tuner.workers.bench.Bench.finals`.

        Raises:
            DeviceTrouble: The worker failed even so.
        """
        found = self._interleaved(compiled_configs, budget_s, threads)
        if not isinstance(found, str):
            return found
        lost: dict[int, str] = {}
        for number, each in enumerate(compiled_configs):
            alone = self._interleaved([each], budget_s / len(compiled_configs), ())
            if isinstance(alone, str):
                lost[number] = alone
        sound = [each for number, each in enumerate(compiled_configs) if number not in lost]
        found = self._interleaved(sound, budget_s, threads)
        if isinstance(found, str):
            raise DeviceTrouble(f"{self._found.info.name} cannot play the finals: {found}; run `tuner doctor`")
        timed = iter(found)
        finalists = [
            Measurement(Outcome.CRASHED, lost[number], compiled=each.compiled)
            if number in lost
            else next(timed)
            for number, each in enumerate(compiled_configs)
        ]
        return [*finalists, *timed]

    def _interleaved(
        self, compiled_configs: Sequence[CompiledConfig], budget_s: float, threads: Sequence[int]
    ) -> list[Measurement] | str:
        """Returns the measurements, or the failure after which the worker was replaced."""
        named = [to_json(each) for each in compiled_configs]
        message = {"do": "finals", "budget_s": budget_s, "threads": list(threads), "compiled_configs": named}
        code = b"".join(compiled_config.code for compiled_config in compiled_configs)
        try:
            data = self.channel.ask(message, code, LONG_LIMIT_S).data
        except WorkerFailed as failure:
            self.replace()
            return str(failure)
        if "trouble" in data:
            self.replace()
            return str(data["trouble"])
        found = [Measurement.from_json(each) for each in data["measurements"]]
        if data["unwell"]:
            self.replace()
            return next((each.reason for each in found if each.reason), "the device was left unwell")
        return found

    def sentinel(self, named: Sequence[tuple[str, CompiledConfig]], terms: Terms) -> Turns:
        """Times configs and the library in turns, after `prepare`.

        Args:
            named: The configs with their names, the champion first.
            terms: When to stop.

        Returns:
            The rounds. A worker that crashed or hung has been replaced; the champion is then ``wrong``.

        Raises:
            DeviceTrouble: The device stays unwell.
        """
        configs = [each for _, each in named]
        message = {
            "do": "sentinel", "names": [name for name, _ in named], "terms": asdict(terms),
            "compiled_configs": [to_json(each) for each in configs],
        }  # fmt: skip
        code = b"".join(each.code for each in configs)
        try:
            data = self.channel.ask(message, code, LIMIT_FLOOR_S * (1 + len(named)) + terms.budget_s).data
        except WorkerFailed as failure:
            self.replace()
            return Turns(wrong={named[0][0]: str(failure)})
        if "trouble" in data or data["unwell"]:
            self.replace()
        return Turns(wrong={named[0][0]: data["trouble"]}) if "trouble" in data else Turns(**data["turns"])

    def transfers_s(self) -> Mapping[str, float]:
        """Seconds for ``allocate``, ``to_device`` and ``to_host`` of the problem's arrays; empty on a CPU.

        Raises:
            DeviceTrouble: The worker failed.
        """
        found: dict[str, float] = self.trusted({"do": "transfers"})["transfers_s"]
        return found


def to_json(compiled_config: CompiledConfig) -> dict[str, Any]:
    """A compiled config but for its code, for a message."""
    return {
        "rendered": rendered_to_json(compiled_config.rendered), "compiled": asdict(compiled_config.compiled),
        "compile_s": compiled_config.compile_s, "code_bytes": len(compiled_config.code),
    }  # fmt: skip


class Crew:
    """Device workers and compile workers; `close`, or the end of a ``with`` block, ends them.

    Attributes:
        found: The devices.
        devices: One worker for each device, in the order in which they were given; empty until `open`.
    """

    def __init__(self, found: Sequence[DetectedDevice], most_compilers: int = 0) -> None:
        """Starts nothing yet.

        Args:
            found: The devices, all of one kind.
            most_compilers: Number of compile workers at the most; 0 for as many as suit the machine.
        """
        self.devices: list[DeviceWorker] = []
        self.found, self._most = tuple(found), most_compilers
        self._pool: CompilePool | None = None

    def open(self) -> None:
        """Opens the devices side by side; those that are open stay so.

        Raises:
            DeviceTrouble: A device cannot be opened; none is open then.
            EnvironmentTrouble: There is no room for compiled kernels.
        """
        try:
            if not self.devices:
                for device in self.found:
                    self.devices.append(DeviceWorker(device))
            for worker in self.devices:
                worker.open()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Crew:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def pool(self, problem: Mapping[str, Any]) -> CompilePool:
        """The compile workers, which compile for this problem from now on; they start at the first call."""
        if self._pool is None:
            first = self.devices[0]
            size = workers_for(len(os.sched_getaffinity(0)), len(self.devices))
            size = min(size, self._most) if self._most else size
            self._pool = CompilePool(first.opening, first.info.architecture, problem, size)
        self._pool.take_up(problem)
        return self._pool

    def rest(self) -> None:
        """Ends the work on a problem: its arrays are dropped, and what was to be compiled is not.

        On a GPU, compilations under way go on by themselves. On a CPU they would disturb what is timed next, so
        their workers end.
        """
        if self._pool is not None:
            if any(kind_of(worker.info.kind).is_host for worker in self.devices):
                self._pool.cancel()
            else:
                self._pool.abandon()
        for worker in self.devices:
            worker.rest()

    def close(self) -> None:
        """Ends all workers; `open` starts others."""
        while self.devices:
            self.devices.pop().close()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()
