"""A device's worker process: measures configs and the library, whatever a config does to its process.

It is kept alive, replaced after failures, and given up if the device is not healthy.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from tuner.declare.hardware import DeviceInfo
from tuner.devices.detect import DetectedDevice, kind_of
from tuner.devices.settings import check_cache
from tuner.errors import DeviceTrouble, NothingFound
from tuner.results.measurement import Measurement, Outcome
from tuner.workers.bench import Bench, CompiledConfig, ShapeCase, Turns
from tuner.workers.compile_pool import CompilePool, workers_for
from tuner.workers.process import Worker, WorkerFailed, call_of, result_of
from tuner.workers.sampling import SCREEN_WALL_S

T = TypeVar("T")
#: Time limits in seconds for making arrays and reference, and for measuring baseline and finals.
LONG_LIMIT_S = 600.0
#: Seconds that dropping a problem's arrays may take.
REST_LIMIT_S = 10.0
#: Number of fresh workers that may fail their canary in a row before the device counts as unwell.
MAX_UNWELL = 3

#: The first run of a config may take this multiple of the best config's time, and at least these seconds,
#: because replacing the worker takes time, too.
FIRST_LIMIT_FACTOR, FIRST_LIMIT_FLOOR_S = 10.0, 2.0
#: All work on a config may take this multiple of the best config's time...
LIMIT_FACTOR = 300.0
#: ...but always this long, in seconds: the first run of a config also loads and verifies it.
LIMIT_FLOOR_S = 10.0


_log = logging.getLogger(__name__)


def run_limit_s(best_s: float | None) -> float:
    """Returns the seconds that a config may take, given the best config's time, if one was measured."""
    return max(LIMIT_FLOOR_S, LIMIT_FACTOR * (best_s or 0.1))


def first_limit_s(best_s: float | None) -> float | None:
    """Returns the seconds that a config's first run may take; None for no limit of its own."""
    return None if best_s is None else max(FIRST_LIMIT_FLOOR_S, FIRST_LIMIT_FACTOR * best_s)


class DeviceWorker:
    """One device, on which configs are measured by a process that may be replaced at any time.

    Attributes:
        channel: The process that there is now, to wait for while `busy`.
        info: Identity and limits of the device.
        versions: Name -> version of what is involved there.
        free_bytes: Bytes of memory that were free before the arrays were made.
        restarts: Number of replaced workers.
        stopped_s: Seconds in which a worker that was waited for did not run, or the machine did not.
    """

    def __init__(self, found: DetectedDevice) -> None:
        """Starts the worker; `open` waits for it.

        Args:
            found: The device.
        """
        self._found = found
        self._prepared: dict[str, Any] | None = None
        self._begun: tuple[Mapping[str, Any], float]
        self.restarts, self.stopped_s, self._rehearses = 0, 0.0, False
        self.channel = self._start()

    def open(self) -> None:
        """Waits until the device is open, and reads its identity and free memory.

        A worker that died while it rested is replaced.

        Raises:
            DeviceTrouble: It cannot be opened.
            EnvironmentTrouble: There is no room for its compiled kernels.
        """
        check_cache()
        try:
            hello = self.channel.ask({"do": "hello"})
        except WorkerFailed:
            self.channel.close()
            self.channel = self._start()
            hello = self.trusted({"do": "hello"})
        self.info = DeviceInfo.from_json(hello["info"])
        self.versions: Mapping[str, str] = hello["versions"]
        self.free_bytes: int = hello["free_bytes"]

    def _start(self) -> Worker:
        return Worker("device", self._found.opening, dict(self._found.environment))

    def trusted(self, message: dict[str, Any], limit_s: float = LONG_LIMIT_S) -> dict[str, Any]:
        """Sends a request that no config can spoil; if it fails, the device is in trouble or had no time."""
        self._settle()
        try:
            return self.channel.ask(message, limit_s)
        except WorkerFailed as failure:
            if failure.outcome is Outcome.TIMED_OUT and limit_s < LONG_LIMIT_S:
                raise NothingFound(
                    "a study has time for arrays, their reference and the library; these take more than the "
                    f"{limit_s:.3g} s that it had for them on {self._found.info.name}; give it more seconds"
                ) from failure
            what = str(message.get("method", message["do"])).replace("_", " ")
            raise DeviceTrouble(
                f"{self._found.info.name} cannot {what}: {failure}; run `tuner doctor`"
            ) from failure

    def prepare(
        self, problem: Mapping[str, Any], regime: str, energy: bool = False, error_limit: float | None = None,
        limit_s: float = LONG_LIMIT_S, screen_s: float = SCREEN_WALL_S, may_vary: bool = False,
    ) -> None:  # fmt: skip
        """Makes arrays and references, with inputs drawn afresh for each worker.

        Args:
            problem: The problem's name.
            regime: How time is taken.
            energy: True to measure energy beside time.
            error_limit: Configs whose error exceeds this multiple of the library's are not timed; None for no
                limit.
            limit_s: Seconds that it may take.
            screen_s: See `tuner.workers.bench.Bench`.
            may_vary: See there.

        Raises:
            DeviceTrouble: It cannot, for example for lack of memory.
            NothingFound: It takes longer.
        """
        self._prepared = {
            "do": "prepare", "problem": dict(problem), "regime": regime, "references": 2,
            "error_limit": error_limit,
            "how": {"energy": energy, "screen_s": screen_s, "may_vary": may_vary},
        }  # fmt: skip
        self.trusted(self._prepared, limit_s)

    def rest(self) -> None:
        """Drops the problem's arrays. A worker that cannot or is busy is ended; `open` starts another."""
        self._prepared = None
        if not self.channel.busy:
            with contextlib.suppress(WorkerFailed, DeviceTrouble):
                self.channel.ask({"do": "rest"}, REST_LIMIT_S)
                return
        self.channel.kill()

    def replace(self) -> None:
        """Replaces the worker by a fresh one, and checks that the device is healthy.

        Raises:
            DeviceTrouble: The device stays unwell.
        """
        for attempt in range(1, MAX_UNWELL + 1):
            self.channel.close()
            self.restarts += 1
            self.channel = self._start()
            try:
                self.channel.ask({"do": "hello"})
                unwell = self.channel.ask({"do": "canary"})["unwell"]
            except (WorkerFailed, DeviceTrouble) as error:
                unwell = str(error)
            if not unwell:
                break
            _log.warning("device unwell after a restart (%d of %d): %s", attempt, MAX_UNWELL, unwell)
        else:
            raise DeviceTrouble(f"{self._found.info.name} stays unwell: {unwell}; finished trials are kept")
        if self._prepared is not None:
            self.trusted(self._prepared)

    def baseline(self, limit_s: float = LONG_LIMIT_S) -> Measurement | None:
        """Measures the library; None if the operation declares none.

        Raises:
            NothingFound: It takes longer than it may.
        """
        return result_of(Bench.measure_baseline, self.trusted(call_of(Bench.measure_baseline), limit_s))

    def rehearse(self) -> None:
        """Has the library checked as finals check configs; nobody waits for it but the next request.

        A GPU compiles what these checks need when they first run, for seconds: here beside the first configs.
        """
        self._request(call_of(Bench.rehearse), LONG_LIMIT_S)
        self._rehearses = True

    def _settle(self) -> None:
        """Waits for the end of a rehearsal; a worker that it ended has been replaced."""
        is_under_way, self._rehearses = self._rehearses and self.channel.busy, False
        if is_under_way:
            with contextlib.suppress(WorkerFailed):
                self._collected()

    def begin(
        self, compiled_config: CompiledConfig, incumbent_s: float | None, limit_s: float | None = None
    ) -> None:
        """Begins to measure a config; `finish` returns the result.

        Args:
            compiled_config: What to measure.
            incumbent_s: Best median so far in seconds; a config that cannot win against it is pruned.
            limit_s: Seconds that it may take; by default a multiple of the incumbent's time.
        """
        limits = {"incumbent_s": incumbent_s, "first_limit_s": first_limit_s(incumbent_s)}
        message = call_of(Bench.measure, compiled_config=compiled_config, **limits)
        self.send(message, run_limit_s(incumbent_s) if limit_s is None else limit_s)

    def send(self, message: Mapping[str, Any], limit_s: float) -> None:
        """Sends a request for a measurement behind those that have none yet; `finish` returns the first.

        A worker that is replaced loses the others, as `restarts` tells.
        """
        self._begun = message, limit_s
        self._request(*self._begun)

    def _request(self, message: Mapping[str, Any], limit_s: float) -> None:
        """Sends a request. A worker that was dead before it is replaced: that is not the request's fault."""
        self._settle()
        try:
            self.channel.request(message, limit_s)
        except WorkerFailed:
            self.replace()
            self.channel.request(message, limit_s)

    def arrived(self) -> bool:
        """True if `finish` will not wait long."""
        return self.channel.arrived()

    def finish(self) -> Measurement:
        """Returns the measurement that `begin` started.

        A worker that crashed, hung or reported a poisoned context has been replaced. A config whose worker was
        stopped meanwhile, or whose clock contradicts this process's, is measured once more unless others wait.

        Raises:
            DeviceTrouble: The device stays unwell.
        """
        is_last = not self.channel.waiting
        measurement, is_credible = self._finished()
        if is_last and not is_credible:
            self._request(*self._begun)
            measurement, _ = self._finished()
        return measurement

    def _finished(self) -> tuple[Measurement, bool]:
        """A measurement, and whether its worker ran all the time and had a true clock."""
        channel = self.channel
        try:
            measurement = result_of(Bench.measure, self._collected())
        except WorkerFailed as failure:
            measurement = Measurement(failure.outcome, str(failure))
            if failure.outcome is Outcome.WRONG_RESULT:
                return measurement, False
            if channel.stopped_s and failure.outcome is Outcome.TIMED_OUT:
                reason = f"its process did not run for {channel.stopped_s:.3g} s"
                measurement = Measurement(Outcome.CRASHED, reason)
        return measurement, not channel.stopped_s

    def _collected(self) -> dict[str, Any]:
        """The answer to the pending request; a worker that failed or is unwell has been replaced.

        Raises:
            WorkerFailed: The worker crashed, took too long, reports trouble, or its clock is wrong.
        """
        channel = self.channel
        try:
            answer = channel.collect()
            if "trouble" in answer:
                raise WorkerFailed(answer["trouble"])
            if trouble := self._clock_trouble(answer):
                raise WorkerFailed(trouble, Outcome.WRONG_RESULT)
        except WorkerFailed:
            self.replace()
            raise
        finally:
            self.stopped_s += channel.stopped_s
        if answer["unwell"]:
            self.replace()
        return answer

    def _clock_trouble(self, answer: Mapping[str, Any]) -> str:
        """What is wrong with the worker's clock, or with the sum of times that it took one after the other."""
        trouble, result = self.channel.clock_trouble(answer), answer["result"]
        took_s = sum(result["samples_s"]) if isinstance(result, dict) and "samples_s" in result else 0.0
        if not trouble and kind_of(self._found.spec).times_pass and took_s > answer["clock_s"]:
            return f"its runs took {took_s:.3g} s in all, and only {answer['clock_s']:.3g} s passed"
        return trouble

    def _called(self, method: Callable[..., T], limit_s: float, lost: Callable[[str], T], **how: Any) -> T:
        """What a method of the bench returns, or stands for it where the worker failed; see `_collected`."""
        try:
            self._request(call_of(method, **how), limit_s)
            return result_of(method, self._collected())
        except WorkerFailed as failure:
            return lost(str(failure))

    def verify(self, compiled_config: CompiledConfig, cases: Sequence[ShapeCase]) -> str:
        """Checks a compiled config at other shapes.

        Returns:
            What is wrong; empty if nothing is. A worker that crashed or hung has been replaced.
        """
        limit_s = LIMIT_FLOOR_S * (1 + len(cases))
        return self._called(Bench.verify, limit_s, str, compiled_config=compiled_config, cases=cases)

    def class_of_rows(self, compiled_config: CompiledConfig, case: ShapeCase, dim: str, count: int) -> str:
        """See `tuner.workers.bench.Bench.class_of_rows`; a worker that crashed or hung has been replaced."""
        how = {"compiled_config": compiled_config, "case": case, "dim": dim, "count": count}
        return self._called(Bench.class_of_rows, LONG_LIMIT_S, lambda why: "", **how)

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
        measurements = self._interleaved(compiled_configs, budget_s, threads)
        if not isinstance(measurements, str):
            return measurements
        share_s = budget_s / len(compiled_configs)
        alone = [self._interleaved([config], share_s, ()) for config in compiled_configs]
        played = list(zip(compiled_configs, alone, strict=True))
        sound = [config for config, result in played if not isinstance(result, str)]
        measurements = self._interleaved(sound, budget_s, threads)
        if isinstance(measurements, str):
            name = self._found.info.name
            raise DeviceTrouble(f"{name} cannot play the finals: {measurements}; run `tuner doctor`")
        timed = iter(measurements)
        finalists = [
            Measurement(Outcome.CRASHED, result, compiled=config.compiled)
            if isinstance(result, str)
            else next(timed)
            for config, result in played
        ]
        return [*finalists, *timed]

    def _interleaved(
        self, compiled_configs: Sequence[CompiledConfig], budget_s: float, threads: Sequence[int]
    ) -> list[Measurement] | str:
        """Returns the measurements, or the failure after which the worker was replaced."""
        arguments = {"compiled_configs": compiled_configs, "budget_s": budget_s, "threads": threads}
        try:
            self._request(call_of(Bench.finals, **arguments), LONG_LIMIT_S)
            answer = self._collected()
        except WorkerFailed as failure:
            return str(failure)
        measurements = result_of(Bench.finals, answer)
        if answer["unwell"]:
            reasons = (measurement.reason for measurement in measurements if measurement.reason)
            return next(reasons, "the device was left unwell")
        return measurements

    def sentinel(self, compiled_configs: Mapping[str, CompiledConfig], budget_s: float) -> Turns:
        """Times configs and the library in turns, after `prepare`.

        Args:
            compiled_configs: The configs by name, the champion first.
            budget_s: Wall time of the rounds, in seconds.

        Returns:
            The rounds. A worker that crashed or hung has been replaced; the champion is then ``wrong``.

        Raises:
            DeviceTrouble: The device stays unwell.
        """
        limit_s = LIMIT_FLOOR_S * (1 + len(compiled_configs)) + budget_s
        how = {"compiled_configs": compiled_configs, "budget_s": budget_s}
        champion = next(iter(compiled_configs))
        return self._called(Bench.sentinel, limit_s, lambda why: Turns(wrong={champion: why}), **how)

    def transfers_s(self) -> Mapping[str, float]:
        """Seconds for ``allocate``, ``to_device`` and ``to_host`` of the problem's arrays; empty on a CPU.

        Raises:
            DeviceTrouble: The worker failed.
        """
        return cast(dict[str, float], self.trusted({"do": "transfers"})["transfers_s"])

    def close(self) -> None:
        """Kills the worker."""
        self.channel.close()


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
        """Opens the devices side by side, and starts compile workers meanwhile; those that are open stay so.

        Raises:
            DeviceTrouble: A device cannot be opened; none is open then.
            EnvironmentTrouble: There is no room for compiled kernels.
        """
        try:
            if not self.devices:
                for device in self.found:
                    self.devices.append(DeviceWorker(device))
                size = workers_for(len(os.sched_getaffinity(0)), len(self.devices))
                size = min(size, self._most) if self._most else size
                self._pool = CompilePool(self.found[0].opening, size)
            for worker in self.devices:
                worker.open()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Crew:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def pool(self, problem: Mapping[str, Any]) -> CompilePool:
        """The compile workers of open devices, which compile for this problem from now on."""
        assert self._pool is not None, "open devices have compile workers"
        self._pool.take_up(problem, self.devices[0].info.architecture)
        return self._pool

    def rest(self) -> None:
        """Ends the work on a problem: its arrays are dropped, and what was to be compiled is not."""
        if self._pool is not None:
            self._pool.cancel()
        for worker in self.devices:
            worker.rest()

    def close(self) -> None:
        """Ends all workers; `open` starts others."""
        while self.devices:
            self.devices.pop().close()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()
