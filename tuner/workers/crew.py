"""The worker processes of a device, or of several alike, kept from one problem to the next.

Opening a device, loading its libraries and starting compile workers takes seconds on a GPU node; a short study
would spend half its time on it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from tuner.devices.detect import DetectedDevice
from tuner.workers.compile_pool import CompilePool, workers_for
from tuner.workers.device_worker import DeviceWorker


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
            if any(worker.info.kind == "cpu" for worker in self.devices):
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
