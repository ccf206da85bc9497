"""Takes samples of a run, each on new inputs, and checks one of them: every timed run must really compute."""

from __future__ import annotations

import random
import time
from functools import partial

from tuner.devices.protocol import Device, Run
from tuner.measuring.workload import Workload, wrote_into

#: The checked sample is a random one among this many.
CHECKED_AMONG = 10


class CheckedSamples:
    """Takes samples of a run.

    Before each sample, ahead of the cache flush, the inputs are placed anew. In the regimes without a flush,
    that would leave other data in the caches than a run does. There, the inputs are placed once for all samples
    of a call, an untimed run follows, and one element of each input changes before each sample.

    Attributes:
        wrong: What is wrong with the run; empty if nothing is.
        check_s: Seconds spent on checks.
    """

    def __init__(
        self, device: Device, run: Run, regime: str, workload: Workload, allowance: float = 1.0
    ) -> None:
        """Keeps device, run and workload.

        Args:
            device: Where.
            run: The run; it must have run before.
            regime: One of `tuner.devices.protocol.REGIMES`.
            workload: The arrays that it runs on.
            allowance: So many times the usual tolerance is allowed.
        """
        self._allowance = allowance
        self._device, self._run, self._regime, self._workload = device, run, regime, workload
        self._cold = regime.startswith("cold")
        self._ahead = random.SystemRandom().randrange(CHECKED_AMONG)
        self._checked = False
        self.wrong = ""
        self.check_s = 0.0

    def take_s(self, count: int) -> list[float]:
        """Takes this many samples; in seconds.

        Raises:
            LaunchFailed: A run failed.
        """
        if self._checked or self._ahead >= count:
            self._ahead -= count
            return self._plain_s(count)
        ahead, behind = self._ahead, count - self._ahead - 1
        return [*self._plain_s(ahead), self._checked_s(), *self._plain_s(behind)]

    def turn_s(self, count: int) -> list[float]:
        """Like `take_s`, but then compares the inputs, before other kernels run on them.

        Raises:
            LaunchFailed: A run failed.
        """
        samples = self.take_s(count)
        self._compare()
        return samples

    def finish(self) -> None:
        """Compares the inputs, and checks a run if none was checked yet.

        Raises:
            LaunchFailed: The run failed.
        """
        self._compare()
        if not self._checked:
            self._checked_s()

    def _compare(self) -> None:
        begun_s = time.perf_counter()
        changed = self._workload.inputs.changed()
        if changed:
            self.wrong = self.wrong or wrote_into(changed)
        self.check_s += time.perf_counter() - begun_s

    def _plain_s(self, count: int) -> list[float]:
        if count == 0:
            return []
        inputs = self._workload.inputs
        if not self._cold:
            inputs.shuffle()
            self._run()
        before = inputs.shuffle if self._cold else inputs.flip
        return self._device.samples_s(self._run, count, self._regime, before)

    def _checked_s(self) -> float:
        workload = self._workload
        before: Run = partial(workload.begin, workload.second)
        if not self._cold:
            workload.begin(workload.second)
            workload.inputs.flip()
            self._run()
            before = workload.begin_again
        [sample_s] = self._device.samples_s(self._run, 1, self._regime, before)
        begun_s = time.perf_counter()
        _, wrong = workload.check(self._allowance)
        if wrong:
            self.wrong = self.wrong or f"in a timed run: {wrong}"
        self.check_s += time.perf_counter() - begun_s
        self._checked = True
        return sample_s
