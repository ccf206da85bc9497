"""Times given configs at given problems, with the same workers and checks as a study's trials."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.detect import DetectedDevice
from tuner.errors import InputError
from tuner.results.measurement import Measurement
from tuner.results.record import Record
from tuner.search import Candidate
from tuner.store import Store
from tuner.study.loop import FixedList, Loop, TimeLimits
from tuner.study.session import Recorder, Session, TimingConditions
from tuner.workers.bench import CompiledConfig
from tuner.workers.device_worker import Crew

#: Configs slower than the best known by this factor are pruned after a few samples.
PRUNED_BEYOND = 1.3


@dataclass(frozen=True)
class MissingTime:
    """A missing time.

    Attributes:
        problem: The problem.
        kernel: Kernel, as declared now.
        config: A legal config of it.
        best_s: Median of the best known config there, in seconds; None if none is known.
    """

    problem: Problem
    kernel: Kernel
    config: Config
    best_s: float | None = None


@dataclass
class Remeasured:
    """The result of a re-measurement.

    Attributes:
        records: The stored records, in order.
        left: Number of times not measured: not reached in time, or too large for the device's memory.
        why: Reason why some were not measured; empty if all were.
    """

    records: list[Record] = field(default_factory=list)
    left: int = 0
    why: str = ""

    def leave(self, count: int, why: str) -> None:
        """Records that some were not measured."""
        if count:
            self.left, self.why = self.left + count, why


class _Again(FixedList):
    """Times what is wanted at one problem, until a deadline."""

    def __init__(self, wanted: Sequence[MissingTime], deadline_s: float | None, result: Remeasured) -> None:
        kernels = {each.kernel.name: each.kernel for each in wanted}
        super().__init__(
            kernels, [Candidate(each.kernel.name, each.config, at) for at, each in enumerate(wanted)]
        )
        self._wanted, self._deadline_s, self._result = wanted, deadline_s, result
        self.left = len(wanted)

    def ended(self) -> str:
        """The deadline has passed."""
        return "time was up" if _is_past(self._deadline_s) else ""

    def limits(self, candidate: Candidate) -> TimeLimits:
        """What is far slower than the best known is stopped early."""
        best_s = self._wanted[candidate.number].best_s
        return TimeLimits(spilling=True) if best_s is None else TimeLimits(best_s * PRUNED_BEYOND)

    def learn(self, candidate: Candidate, measurement: Measurement, code: CompiledConfig | None) -> None:
        """Counts it as done."""
        self.left -= 1
        if code is None:
            self._result.leave(1, f"{candidate.kernel} {candidate.config} does not compile")

    def stored(self, candidate: Candidate, record: Record) -> None:
        """Returns its record."""
        self._result.records.append(record)


class Remeasuring:
    """A device and its compile workers, for any number of measurements; `close` ends them."""

    def __init__(self, store: Store, found: DetectedDevice, regime: str, study: str) -> None:
        """Opens the device.

        Args:
            store: Where records go.
            found: The device.
            regime: How time is taken.
            study: Study name for the records.

        Raises:
            DeviceTrouble: It cannot be opened.
        """
        self._store, self._regime, self._study = store, regime, study
        self._crew = Crew([found])
        self._crew.open()

    def close(self) -> None:
        """Ends the workers."""
        self._crew.close()

    def run(
        self,
        wanted: Iterable[MissingTime],
        deadline_s: float | None = None,
        report: Callable[[str], None] = lambda text: None,
    ) -> Remeasured:
        """Measures and stores problem by problem, the quick ones first.

        Args:
            wanted: The times to measure.
            deadline_s: `time.monotonic` at which to stop; None for no limit.
            report: Called at the start of every problem.

        Raises:
            DeviceTrouble: The device stays unwell; earlier measurements are stored.
        """
        by_problem: dict[Problem, list[MissingTime]] = {}
        for each in wanted:
            by_problem.setdefault(each.problem, []).append(each)
        result, codes = Remeasured(), dict[str, CompiledConfig]()
        # Problems that differ in their dims alone share machine code.
        for problem in sorted(by_problem, key=lambda each: (*_of_code(each), each.memory_bytes)):
            report(f"{problem}: {len(by_problem[problem])} configs")
            self._measure(problem, _Again(by_problem[problem], deadline_s, result), result, codes)
        return result

    def _measure(
        self, problem: Problem, policy: _Again, result: Remeasured, codes: dict[str, CompiledConfig]
    ) -> None:
        if why := policy.ended():
            result.leave(policy.left, why)
            return
        worker = self._crew.devices[0]
        recorder = Recorder(self._store, problem, worker.info, self._regime, worker.versions, self._study)
        try:
            session = Session(self._crew, problem, recorder, TimingConditions(self._regime), codes)
        except InputError as error:
            result.leave(policy.left, str(error))
            return
        with session:
            loop = Loop(session, policy)
            loop.prepare()
            result.leave(policy.left, loop.run())


def _of_code(problem: Problem) -> tuple[str, ...]:
    return problem.dtype, problem.layout, problem.precision, problem.epilogue


def _is_past(deadline_s: float | None) -> bool:
    return deadline_s is not None and time.monotonic() > deadline_s
