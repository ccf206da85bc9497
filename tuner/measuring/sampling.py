"""Samples of one run, each on inputs drawn anew, one of them checked: what is timed must compute each time."""

from __future__ import annotations

import random
import time
from functools import partial

from tuner.devices.protocol import Device, Run
from tuner.measuring.workload import Workload, wrote_into

#: The sample that is checked is one of so many, at random.
CHECKED_AMONG = 10


class CheckedSamples:
    """Takes samples of a run.

    Before each sample the inputs are placed anew, ahead of the cache's flush. In the regimes without a flush
    that would leave other data in the caches than a run does: there the inputs are placed once for all samples
    of a call, a run that is not timed follows, and before each sample one element of each input changes.

    Attributes:
        wrong: What is wrong with the run; empty while nothing is.
        check_s: Seconds spent on checks.
    """

    def __init__(self, device: Device, run: Run, regime: str, workload: Workload) -> None:
        """Takes what it works with.

        Args:
            device: Where.
            run: Has run before.
            regime: One of `tuner.devices.protocol.REGIMES`.
            workload: The arrays that it runs on.
        """
        self._device, self._run, self._regime, self._workload = device, run, regime, workload
        self._cold = regime.startswith("cold")
        self._ahead = random.SystemRandom().randrange(CHECKED_AMONG)
        self._checked = False
        self.wrong = ""
        self.check_s = 0.0

    def take_s(self, count: int) -> list[float]:
        """Takes so many samples; seconds each.

        Raises:
            LaunchFailed: A run failed.
        """
        if self._checked or self._ahead >= count:
            self._ahead -= count
            return self._plain_s(count)
        ahead, behind = self._ahead, count - self._ahead - 1
        return [*self._plain_s(ahead), self._checked_s(), *self._plain_s(behind)]

    def turn_s(self, count: int) -> list[float]:
        """As `take_s`; then inputs are compared, before others run on them.

        Raises:
            LaunchFailed: A run failed.
        """
        samples = self.take_s(count)
        self._compare()
        return samples

    def finish(self) -> None:
        """Compares the inputs, and checks a run now where none was.

        Raises:
            LaunchFailed: It failed.
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
        _, wrong = workload.check()
        if wrong:
            self.wrong = self.wrong or f"in a timed run: {wrong}"
        self.check_s += time.perf_counter() - begun_s
        self._checked = True
        return sample_s
