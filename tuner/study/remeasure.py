"""Times given configs at given problems, with the same workers and checks as a study's trials."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from tuner.declare.kernel import Kernel, Rendered, render
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.detect import DetectedDevice
from tuner.errors import InputError
from tuner.results.record import Record, Role
from tuner.store import Store
from tuner.study.recorder import Recorder
from tuner.study.session import Conditions, Session
from tuner.workers.bench import CompiledConfig
from tuner.workers.device_worker import Crew

#: Configs slower than the best known by this factor are pruned after a few samples.
PRUNED_BEYOND = 1.3


@dataclass(frozen=True)
class Wanted:
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
        self.left, self.why = self.left + count, why


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
        wanted: Iterable[Wanted],
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
        by_problem: dict[Problem, list[Wanted]] = {}
        for each in wanted:
            by_problem.setdefault(each.problem, []).append(each)
        found = Remeasured()
        groups: dict[tuple[str, ...], list[Problem]] = {}
        for problem in sorted(by_problem, key=lambda each: each.memory_bytes):
            groups.setdefault((problem.dtype, problem.layout, problem.precision, problem.epilogue), []).append(
                problem
            )
        for problems in groups.values():
            compiled = self._compile([each for problem in problems for each in by_problem[problem]])
            for problem in problems:
                report(f"{problem}: {len(by_problem[problem])} configs")
                self._measure(by_problem[problem], compiled, deadline_s, found)
        return found

    def _session(self, problem: Problem) -> Session:
        worker = self._crew.devices[0]
        recorder = Recorder(self._store, problem, worker.info, self._regime, worker.versions, self._study)
        return Session(self._crew, problem, recorder, Conditions(self._regime))

    def _compile(self, wanted: Sequence[Wanted]) -> dict[str, CompiledConfig]:
        """Returns machine code by the hash of the rendered text, which does not depend on dims."""
        rendered: dict[str, Rendered] = {}
        for each in wanted:
            text = render(each.kernel, each.problem, each.config)
            rendered.setdefault(text.hash, text)
        tickets = dict(enumerate(rendered))
        with self._session(wanted[0].problem) as session:
            done = session.compile_all({number: rendered[key] for number, key in tickets.items()})
        return {tickets[number]: compiled_config for number, compiled_config in done.items()}

    def _measure(
        self,
        wanted: Sequence[Wanted],
        compiled: dict[str, CompiledConfig],
        deadline_s: float | None,
        found: Remeasured,
    ) -> None:
        problem = wanted[0].problem
        if _is_past(deadline_s):
            found.leave(len(wanted), "time was up")
            return
        try:
            session = self._session(problem)
        except InputError as error:
            found.leave(len(wanted), str(error))
            return
        with session:
            session.prepare()
            for number, each in enumerate(wanted):
                if _is_past(deadline_s):
                    found.leave(len(wanted) - number, "time was up")
                    return
                rendered = render(each.kernel, problem, each.config)
                compiled_config = compiled.get(rendered.hash)
                if compiled_config is None:
                    found.leave(1, f"{each.kernel.name} {each.config} does not compile")
                    continue
                best_s = None if each.best_s is None else each.best_s * PRUNED_BEYOND
                measurement = session.measure(replace(compiled_config, rendered=rendered), best_s)
                found.records.append(session.add(Role.TRIAL, each.kernel, each.config, measurement))


def _is_past(deadline_s: float | None) -> bool:
    return deadline_s is not None and time.monotonic() > deadline_s
