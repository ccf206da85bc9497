"""Times given configs at given problems, with the same workers and checks as a study's trials."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.errors import InputError
from tuner.search import Candidate
from tuner.store import Store
from tuner.study.loop import Loop, TrialPolicy
from tuner.study.progress import TimeBudget
from tuner.study.session import Session
from tuner.workers.device_worker import Crew

#: In a re-measurement, configs slower than the best known by this factor are pruned after a few samples.
PRUNED_BEYOND = 1.3


@dataclass(frozen=True)
class MissingTime:
    """A time that is to be measured again, or at another problem.

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


class _Missing(TrialPolicy):
    """Times what is missing at one problem; what is far slower than the best known is stopped early."""

    def __init__(self, missing: Sequence[MissingTime]) -> None:
        waiting = [Candidate(one.kernel.name, one.config, number) for number, one in enumerate(missing)]
        super().__init__([one.kernel for one in missing], waiting)
        self._best_s = [one.best_s for one in missing]

    def to_beat_s(self, candidate: Candidate) -> float | None:
        """See `TrialPolicy`."""
        best_s = self._best_s[candidate.number]
        return None if best_s is None else best_s * PRUNED_BEYOND


def remeasure(
    store: Store, crew: Crew, missing: Iterable[MissingTime], regime: str, study: str,
    deadline_s: float | None = None, report: Callable[[str], None] = lambda text: None,
    after: Callable[[Session], None] = lambda session: None,
) -> None:  # fmt: skip
    """Measures and stores missing times problem by problem, the quick ones first.

    Args:
        store: Where records go.
        crew: Workers of the device, open.
        missing: The times to measure; a problem that does not fit into memory is left out.
        regime: How time is taken.
        study: Study name for the records.
        deadline_s: `time.monotonic` at which to stop; None for no limit.
        report: Called at the start of every problem.
        after: Called at the end of every problem, while its devices are open.

    Raises:
        DeviceTrouble: The device stays unwell; earlier measurements are stored.
    """
    by_problem: dict[Problem, list[MissingTime]] = {}
    for one in missing:
        by_problem.setdefault(one.problem, []).append(one)
    for problem in sorted(by_problem, key=lambda problem: problem.memory_bytes):
        left_s = None if deadline_s is None else deadline_s - time.monotonic()
        if left_s is not None and left_s <= 0:
            return
        report(f"{problem}: {len(by_problem[problem])} configs")
        try:
            with Session(crew, store, problem, regime, study) as session:
                loop = Loop(session, _Missing(by_problem[problem]), TimeBudget(left_s, finals_s=0.0))
                loop.prepare()
                loop.run()
                after(session)
        except InputError as error:
            report(str(error))
