"""The device worker of a study: kept alive, replaced after failures, given up if the device is not healthy."""

from __future__ import annotations

import contextlib
import logging
import random
import select
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.declare.launch import Launch
from tuner.devices.cache_folder import check_cache
from tuner.devices.detect import DetectedDevice
from tuner.errors import DeviceTrouble
from tuner.measuring.bench import CompiledConfig
from tuner.measuring.sentinel_bench import Turns
from tuner.results.measurement import Measurement, Outcome
from tuner.results.sentinel import Terms
from tuner.workers.main import rendered_to_json
from tuner.workers.process import Worker, WorkerFailed, answered

#: The first run of a config may take this multiple of the best config's time, and at least these seconds,
#: because replacing the worker takes time, too.
FIRST_LIMIT_FACTOR, FIRST_LIMIT_FLOOR_S = 10.0, 2.0
#: All work on a config may take this multiple of the best config's time...
LIMIT_FACTOR = 300.0
#: ...but always this long, in seconds: the first run of a config also loads and verifies it.
LIMIT_FLOOR_S = 10.0
#: Time limits in seconds for making arrays and reference, and for measuring baseline and finals.
LONG_LIMIT_S = 600.0
#: Seconds that dropping a problem's arrays may take.
REST_LIMIT_S = 10.0
#: Number of fresh workers that may fail their canary in a row before the device counts as unwell.
MAX_UNWELL = 3


_log = logging.getLogger(__name__)


def run_limit_s(best_s: float | None) -> float:
    """Returns the seconds that a config may take, given the best config's time, if one was measured."""
    return max(LIMIT_FLOOR_S, LIMIT_FACTOR * (best_s or 0.1))


def first_limit_s(best_s: float | None) -> float | None:
    """Returns the seconds that a config's first run may take; None for no limit of its own."""
    return None if best_s is None else max(FIRST_LIMIT_FLOOR_S, FIRST_LIMIT_FACTOR * best_s)


class DeviceWorker:
    """One device, through a worker process that may be replaced at any time.

    Attributes:
        info: Identity and limits of the device.
        versions: Name -> version of what is involved there.
        free_bytes: Bytes of memory that were free before the arrays were made.
        restarts: Number of replaced workers.
    """

    def __init__(self, found: DetectedDevice) -> None:
        """Starts the worker; `open` waits for it.

        Args:
            found: The device.
        """
        self._found = found
        self._prepared: dict[str, Any] | None = None
        self.restarts = 0
        self._rests = False
        self._first_limit_s: float | None = None
        self._worker = self._start()

    def open(self) -> None:
        """Waits until the device is open, and reads its identity and free memory.

        A worker that died while it rested is replaced.

        Raises:
            DeviceTrouble: It cannot be opened.
            EnvironmentTrouble: There is no room for its compiled kernels.
        """
        check_cache()
        if self._rests and not self._answers():
            self._worker.close()
            self._worker = self._start()
        self._rests = False
        hello = self._trusted({"do": "hello"})
        self.info = DeviceInfo.from_json(hello["info"])
        self.versions: Mapping[str, str] = hello["versions"]
        self.free_bytes: int = hello["free_bytes"]

    def _answers(self) -> bool:
        with contextlib.suppress(WorkerFailed):
            return self._worker.alive and bool(self._worker.ask({"do": "hello"}).data)
        return False

    def _start(self) -> Worker:
        return Worker("device", self._found.opening, dict(self._found.environment))

    @property
    def opening(self) -> str:
        """The spec for this device's compile workers; see `tuner.devices.detect.DetectedDevice.opening`."""
        return self._found.opening

    @property
    def channel(self) -> Worker:
        """The channel to wait for while `busy`."""
        return self._worker

    @property
    def busy(self) -> bool:
        """True while a config is being measured."""
        return self._worker.busy

    def _trusted(self, message: dict[str, Any], blob: bytes = b"") -> dict[str, Any]:
        """Sends a request that no config can spoil; if it fails, the device is in trouble."""
        try:
            return answered(self._worker.ask(message, blob, LONG_LIMIT_S))
        except WorkerFailed as failure:
            raise DeviceTrouble(
                f"{self._found.info.name} cannot {message['do']}: {failure}; run `tuner doctor`"
            ) from failure

    def prepare(
        self,
        problem: Mapping[str, Any],
        regime: str,
        energy: bool = False,
        error_limit: float | None = None,
    ) -> None:
        """Makes arrays and reference, with inputs drawn afresh for each worker.

        Args:
            problem: The problem's name.
            regime: How time is taken.
            energy: True to measure energy beside time.
            error_limit: Configs whose error exceeds this multiple of the library's are not timed; None for no
                limit.

        Raises:
            DeviceTrouble: It cannot, for example for lack of memory.
        """
        asked = {"problem": dict(problem), "regime": regime, "energy": energy, "error_limit": error_limit}
        self._prepared = asked
        self._trusted({"do": "prepare", **asked, "seed": _fresh_seed()})

    def rest(self) -> None:
        """Drops the problem's arrays. A worker that cannot or is busy is ended; `open` starts another."""
        self._prepared, self._rests = None, True
        if not self._worker.busy:
            with contextlib.suppress(WorkerFailed, DeviceTrouble):
                answered(self._worker.ask({"do": "rest"}, limit_s=REST_LIMIT_S))
                return
        self._worker.kill()

    def baseline(self) -> Measurement | None:
        """Measures the library; None if the operation declares none."""
        data = self._trusted({"do": "baseline"})["measurement"]
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
            self._worker.request(message, compiled_config.code, limit_s)
        except WorkerFailed:
            # The worker was dead before the request: not this config's fault.
            self._recycle()
            self._worker.request(message, compiled_config.code, limit_s)

    def arrived(self) -> bool:
        """True if `finish` will not wait long."""
        return self.busy and (self._worker.overdue() or bool(select.select([self._worker], [], [], 0)[0]))

    def finish(self) -> Measurement:
        """Returns the measurement that `begin` started.

        A worker that crashed, hung or reported a poisoned context has been replaced.

        Raises:
            DeviceTrouble: The device stays unwell.
        """
        try:
            data = self._worker.collect(0.01 if self._worker.overdue() else 30.0).data
        except WorkerFailed as failure:
            self._recycle()
            if failure.alarmed and self._first_limit_s is not None:
                reason = f"its first run did not end in time: stopped after {self._first_limit_s:.3g} s"
                return Measurement(Outcome.TIMED_OUT, reason)
            return Measurement(Outcome.TIMED_OUT if failure.timed_out else Outcome.CRASHED, str(failure))
        if "trouble" in data:
            self._recycle()
            return Measurement(Outcome.CRASHED, data["trouble"])
        measurement = Measurement.from_json(data["measurement"])
        if data["unwell"]:
            self._recycle()
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
        message = {"do": "verify", "cases": named, "seed": _fresh_seed(), **to_json(compiled_config)}
        limit_s = LIMIT_FLOOR_S * (1 + len(cases))
        try:
            data = self._worker.ask(message, compiled_config.code, limit_s).data
        except WorkerFailed as failure:
            self._recycle()
            return str(failure)
        if "trouble" in data or data["unwell"]:
            self._recycle()
        return str(data.get("trouble") or data["wrong"])

    def finals(
        self, compiled_configs: Sequence[CompiledConfig], budget_s: float, threads: Sequence[int] = ()
    ) -> list[Measurement]:
        """Measures finalists interleaved with the library, whose measurements come last.

        If the worker does not survive, each finalist runs alone to find the culprit, and the others play again.

        Args:
            compiled_configs: The finalists.
            budget_s: Wall time for the rounds in seconds.
            threads: Numbers of CPU threads that they use; see `tuner.measuring.bench.Bench.finals`.

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
            data = self._worker.ask(message, code, LONG_LIMIT_S).data
        except WorkerFailed as failure:
            self._recycle()
            return str(failure)
        if "trouble" in data:
            self._recycle()
            return str(data["trouble"])
        found = [Measurement.from_json(each) for each in data["measurements"]]
        if data["unwell"]:
            self._recycle()
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
            data = self._worker.ask(message, code, LIMIT_FLOOR_S * (1 + len(named)) + terms.budget_s).data
        except WorkerFailed as failure:
            self._recycle()
            return Turns(wrong={named[0][0]: str(failure)})
        if "trouble" in data or data["unwell"]:
            self._recycle()
        return Turns(wrong={named[0][0]: data["trouble"]}) if "trouble" in data else Turns(**data["turns"])

    def send(self, message: dict[str, Any], blob: bytes, limit_s: float) -> None:
        """Sends a request with many answers; see `answers`.

        Args:
            message: The request.
            blob: Its binary part.
            limit_s: Seconds until the first answer.

        Raises:
            WorkerFailed: The worker is gone; it has been replaced.
            DeviceTrouble: The device stays unwell.
        """
        try:
            self._worker.request(message, blob, limit_s)
        except WorkerFailed:
            self.replace()
            raise

    def send_ahead(self, message: dict[str, Any], blob: bytes) -> bool:
        """Sends another request behind the one that is being answered.

        The worker begins with it as soon as that one is done. It is lost if the worker is replaced before that:
        `restarts` tells.

        Returns:
            Whether it was sent. It is not if the worker is gone, as the answers to the first request tell.
        """
        return self._worker.ahead(message, blob)

    def answers(self, limit_s: float) -> Iterator[dict[str, Any]]:
        """Answers to the first request sent, as they come, up to the last, or one that tells of ``trouble``.

        Args:
            limit_s: Seconds that each answer may take.

        Raises:
            WorkerFailed: The worker crashed or took too long; it has been replaced.
            DeviceTrouble: The device stays unwell.
        """
        try:
            while True:
                self._worker.expect(limit_s)
                data = self._worker.collect(limit_s).data
                yield data
                if data.get("last", True):
                    return
        except WorkerFailed:
            self.replace()
            raise

    def replace(self) -> None:
        """Replaces the worker by a fresh one.

        Raises:
            DeviceTrouble: The device stays unwell.
        """
        self._recycle()

    def transfers_s(self) -> Mapping[str, float]:
        """Seconds for ``allocate``, ``to_device`` and ``to_host`` of the problem's arrays; empty on a CPU.

        Raises:
            DeviceTrouble: The worker failed.
        """
        found: dict[str, float] = self._trusted({"do": "transfers"})["transfers_s"]
        return found

    def _recycle(self) -> None:
        """Replaces the worker, and checks that the device is healthy."""
        for attempt in range(1, MAX_UNWELL + 1):
            self._worker.close()
            self.restarts += 1
            self._worker = self._start()
            try:
                answered(self._worker.ask({"do": "hello"}))
                unwell = answered(self._worker.ask({"do": "canary"}))["unwell"]
            except (WorkerFailed, DeviceTrouble) as error:
                unwell = str(error)
            if not unwell:
                break
            _log.warning("device unwell after a restart (%d of %d): %s", attempt, MAX_UNWELL, unwell)
        else:
            raise DeviceTrouble(f"{self._found.info.name} stays unwell: {unwell}; finished trials are kept")
        if self._prepared is not None:
            self.prepare(**self._prepared)

    def close(self) -> None:
        """Kills the worker."""
        self._worker.close()


def _fresh_seed() -> int:
    """Returns a new seed: each worker draws its own inputs, so no config can be correct by knowing them."""
    return random.SystemRandom().randrange(2**32)


def to_json(compiled_config: CompiledConfig) -> dict[str, Any]:
    """A compiled config but for its code, for a message."""
    return {
        "rendered": rendered_to_json(compiled_config.rendered), "compiled": asdict(compiled_config.compiled),
        "compile_s": compiled_config.compile_s, "code_bytes": len(compiled_config.code),
    }  # fmt: skip
