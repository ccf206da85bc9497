"""A device's worker process: kept alive, replaced after failures, given up if the device is not healthy."""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Iterator, Mapping
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.devices.detect import DetectedDevice
from tuner.devices.settings import check_cache
from tuner.errors import DeviceTrouble
from tuner.workers.process import Worker, WorkerFailed, answered

#: Time limits in seconds for making arrays and reference, and for measuring baseline and finals.
LONG_LIMIT_S = 600.0
#: Seconds that dropping a problem's arrays may take.
REST_LIMIT_S = 10.0
#: Number of fresh workers that may fail their canary in a row before the device counts as unwell.
MAX_UNWELL = 3

_log = logging.getLogger(__name__)


class KeptWorker:
    """One device, through a worker process that may be replaced at any time.

    Attributes:
        channel: The process that there is now, to wait for while `busy`.
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
        self.channel = self._start()

    def open(self) -> None:
        """Waits until the device is open, and reads its identity and free memory.

        A worker that died while it rested is replaced.

        Raises:
            DeviceTrouble: It cannot be opened.
            EnvironmentTrouble: There is no room for its compiled kernels.
        """
        check_cache()
        if self._rests and not self._answers():
            self.channel.close()
            self.channel = self._start()
        self._rests = False
        hello = self.trusted({"do": "hello"})
        self.info = DeviceInfo.from_json(hello["info"])
        self.versions: Mapping[str, str] = hello["versions"]
        self.free_bytes: int = hello["free_bytes"]

    def _answers(self) -> bool:
        with contextlib.suppress(WorkerFailed):
            return self.channel.alive and bool(self.channel.ask({"do": "hello"}).data)
        return False

    def _start(self) -> Worker:
        return Worker("device", self._found.opening, dict(self._found.environment))

    @property
    def opening(self) -> str:
        """The spec for this device's compile workers; see `tuner.devices.detect.DetectedDevice.opening`."""
        return self._found.opening

    @property
    def busy(self) -> bool:
        """True while a config is being measured."""
        return self.channel.busy

    def trusted(self, message: dict[str, Any], blob: bytes = b"") -> dict[str, Any]:
        """Sends a request that no config can spoil; if it fails, the device is in trouble."""
        try:
            return answered(self.channel.ask(message, blob, LONG_LIMIT_S))
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
        self.trusted({"do": "prepare", **asked, "seed": fresh_seed()})

    def rest(self) -> None:
        """Drops the problem's arrays. A worker that cannot or is busy is ended; `open` starts another."""
        self._prepared, self._rests = None, True
        if not self.channel.busy:
            with contextlib.suppress(WorkerFailed, DeviceTrouble):
                answered(self.channel.ask({"do": "rest"}, limit_s=REST_LIMIT_S))
                return
        self.channel.kill()

    def send(self, message: dict[str, Any], blob: bytes) -> None:
        """Sends a request with many answers; see `answers`.

        Raises:
            WorkerFailed: The worker is gone; it has been replaced.
            DeviceTrouble: The device stays unwell.
        """
        try:
            self.channel.request(message, blob)
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
        return self.channel.ahead(message, blob)

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
                self.channel.expect(limit_s)
                data = self.channel.collect(limit_s).data
                yield data
                if data.get("last", True):
                    return
        except WorkerFailed:
            self.replace()
            raise

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
                answered(self.channel.ask({"do": "hello"}))
                unwell = answered(self.channel.ask({"do": "canary"}))["unwell"]
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
        self.channel.close()


def fresh_seed() -> int:
    """Returns a new seed: each worker draws its own inputs, so no config can be correct by knowing them."""
    return random.SystemRandom().randrange(2**32)
