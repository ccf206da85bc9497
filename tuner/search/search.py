"""A study's search: ask for configs, tell their results; and a thread that does both beside the devices."""

from __future__ import annotations

import collections
import itertools
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tuner.declare.space import Config, Space
from tuner.errors import InputError, UnknownName
from tuner.results.measurement import Outcome
from tuner.search.optuna_bridge import OPTUNA_SAMPLERS, OptunaStrategy, StorageCopy
from tuner.search.pareto import ParetoStrategy, front
from tuner.search.strategy import History, Observation, RandomStrategy, SequenceStrategy, Strategy
from tuner.search.tile import TileStrategy

#: Names of samplers: ours, plain ones, and Optuna's.
SAMPLERS = ("tile", "random", "bruteforce", *OPTUNA_SAMPLERS)
#: Variable that has trials copied into Optuna's own tables if it is 1.
COPY_VARIABLE = "TUNER_DASHBOARD"
#: Configs that the thread chooses in one step; results reported meanwhile wait for it.
CHOSEN_AT_ONCE = 4
#: Seconds that closing waits for the thread.
CLOSE_WITHIN_S = 1.0


@dataclass(frozen=True)
class Candidate:
    """A config to try.

    Attributes:
        kernel: Name of the kernel.
        config: A legal config, never requested before in this study.
        number: Number of the trial.
    """

    kernel: str
    config: Config
    number: int


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search.

    Attributes:
        seed: The same seed and results give the same configs.
        study_name: Name of the study in the storage.
        sampler: One of `SAMPLERS`.
        budget: Total number of trials of the study, including past ones; None if only time limits it.
        objectives: Objectives to minimise; the first is time. Several need ``tile``, ``random`` or
            ``bruteforce``.
        storage_url: Database to which finished trials are copied for optuna-dashboard, if `COPY_VARIABLE` is 1.
    """

    seed: int
    study_name: str
    sampler: str = "tile"
    budget: int | None = None
    objectives: tuple[str, ...] = ("time",)
    storage_url: str | None = None

    def __post_init__(self) -> None:
        """Checks the sampler.

        Raises:
            UnknownName: There is no such sampler.
            InputError: The sampler supports one objective, and there are several.
        """
        if self.sampler not in SAMPLERS:
            raise UnknownName("sampler", self.sampler, SAMPLERS)
        if self.sampler in OPTUNA_SAMPLERS and len(self.objectives) > 1:
            raise InputError(
                f"the sampler {self.sampler} minimises one objective, got {', '.join(self.objectives)}; "
                "choose tile"
            )


@dataclass(frozen=True)
class Known:
    """Knowledge from before a search begins.

    Attributes:
        starts: Configs to try first; illegal ones are left out.
        past: Earlier trials of this study; never requested again.
        elsewhere: Results of the same kernels on another device or for the nearest shape; used by ``tile``
            only.
        foretold: Whether these are predictions for this very problem.
    """

    starts: Sequence[tuple[str, Config]] = ()
    past: Sequence[Observation] = ()
    elsewhere: Sequence[Observation] = ()
    foretold: bool = False


class Search:
    """Suggests legal configs that were never tried, the most promising first."""

    def __init__(self, spaces: Mapping[str, Space], options: SearchOptions, known: Known = Known()) -> None:
        """Opens a search.

        Args:
            spaces: The legal configs of each kernel that competes.
            options: Options of the search.
            known: Knowledge from before.
        """
        self._spaces = dict(spaces)
        self._objectives = options.objectives
        self._history = History(spaces)
        self._strategy = self._make_strategy(options, known)
        self._numbers = itertools.count()
        self._in_flight: dict[int, tuple[int, datetime]] = {}
        self._measured: list[tuple[str, Config, tuple[float, ...]]] = []
        self._copy: StorageCopy | None = None
        if options.storage_url and os.environ.get(COPY_VARIABLE, "") == "1":
            self._copy = StorageCopy(options.storage_url, options.study_name, options.objectives, spaces)
        for past in known.past:
            if past.kernel in spaces and past.config in spaces[past.kernel]:
                self._learn(spaces[past.kernel].index_of(past.config), past, datetime.now())

    def _make_strategy(self, options: SearchOptions, known: Known) -> Strategy:
        starts = [
            (kernel, self._spaces[kernel].index_of(config))
            for kernel, config in known.starts
            if kernel in self._spaces and config in self._spaces[kernel]
        ]
        history, seed, count = self._history, options.seed, len(options.objectives)
        if options.sampler == "random":
            return RandomStrategy(history, seed)
        if options.sampler == "bruteforce":
            return SequenceStrategy(history)
        if options.sampler in OPTUNA_SAMPLERS:
            return OptunaStrategy(history, options.sampler, seed, starts)
        if count > 1:
            return ParetoStrategy(history, seed, starts, options.budget, objectives=count)
        return TileStrategy(history, seed, starts, options.budget, known.elsewhere, known.foretold)

    def _learn(self, index: int, result: Observation, asked_at: datetime) -> None:
        """Gives a result to the history, then to the strategy."""
        self._history.kernels[result.kernel].learn(index, result.outcome, result.time_s)
        values: tuple[float, ...] = ()
        if not result.outcome.failed and result.time_s is not None:
            values = result.time_s, *result.others
        # An earlier trial may lack an objective, and a trial that was stopped early has only a time.
        if len(values) in (0, len(self._objectives)):
            self._strategy.learn(result.kernel, index, result.outcome, values)
        if self._copy is not None:  # an interrupted run may not have copied its trials
            self._copy.add(result, asked_at)

    def drop(self, kernel: str) -> None:
        """Suggests no more configs of a kernel."""
        self._history.kernels[kernel].dropped = True

    @property
    def stopped(self) -> str:
        """Reason why the search has ended; empty if it has not."""
        return self._strategy.stopped

    def ask(self, count: int = 1) -> list[Candidate]:
        """Returns configs to try next, all legal and new; fewer than `count`, or none, if no more are left."""
        candidates: list[Candidate] = []
        while len(candidates) < count and (chosen := self._strategy.choose()) is not None:
            kernel, index = chosen
            self._history.kernels[kernel].requested[index] = None
            candidate = Candidate(kernel, self._spaces[kernel][index], next(self._numbers))
            self._in_flight[candidate.number] = index, datetime.now()
            candidates.append(candidate)
        return candidates

    def tell(
        self, candidate: Candidate, outcome: Outcome, time_s: float | None, others: Sequence[float] = ()
    ) -> None:
        """Reports the result of a candidate.

        Args:
            candidate: A candidate from `ask`.
            outcome: How its measurement ended.
            time_s: Seconds; of the few samples that were taken when PRUNED; None for a failure.
            others: Values of the objectives after the first, if there are several.
        """
        index, asked_at = self._in_flight.pop(candidate.number)
        kernel, config = candidate.kernel, candidate.config
        self._learn(index, Observation(kernel, config, outcome, time_s, tuple(others)), asked_at)
        if outcome is Outcome.MEASURED and time_s is not None:
            self._measured.append((kernel, config, (time_s, *others)))

    def leaderboard(self) -> dict[tuple[str, Config], float]:
        """Estimated seconds of each measured config: the model's view, which removes noise."""
        return {
            (kernel, self._spaces[kernel][row]): time_s
            for (kernel, row), time_s in self._strategy.leaderboard().items()
        }

    def front(self) -> list[tuple[str, Config, tuple[float, ...]]]:
        """Kernel, config and objectives of each trial of this run on the Pareto front."""
        best = [self._measured[at] for at in front([values for _, _, values in self._measured])]
        return sorted(best, key=lambda point: point[2])

    def close(self) -> str:
        """Copies the finished trials to the storage, if that is wanted.

        Returns:
            Reason why they could not be copied; empty if they were. Our own records do not depend on it.
        """
        copy, self._copy = self._copy, None
        return copy.write() if copy is not None else ""


class BackgroundSearch:
    """Keeps a few candidates ready, in a thread of its own, so that the search works while devices measure.

    On a CPU target the search would disturb timing. With `inline` it runs only inside `want`.

    Attributes:
        thinking_s: Seconds spent on asking and telling, wherever they ran.
    """

    def __init__(self, search: Search, inline: bool) -> None:
        """Starts the thread, unless inline.

        Args:
            search: The search; nothing else may use it from now on.
            inline: True to search only inside `want`.
        """
        self._search, self._inline = search, inline
        self._changed = threading.Condition()
        self._results: list[tuple[Candidate, Outcome, float | None, tuple[float, ...]]] = []
        self._ready: collections.deque[Candidate] = collections.deque()
        self._dropped: list[str] = []
        self._wanted = 0
        self._exhausted = self._closed = False
        self._failure: BaseException | None = None
        self.thinking_s = 0.0
        self._thread = threading.Thread(target=self._run, name="search", daemon=True)
        if not inline:
            self._thread.start()

    @property
    def stopped(self) -> str:
        """Reason why the search requests nothing more."""
        return self._search.stopped

    @property
    def exhausted(self) -> bool:
        """True if no more candidates come until a result is reported."""
        with self._changed:
            return self._exhausted and not self._results and not self._ready

    def tell(
        self, candidate: Candidate, outcome: Outcome, time_s: float | None, others: tuple[float, ...] = ()
    ) -> None:
        """Reports the result of a candidate; see `Search.tell`."""
        with self._changed:
            self._results.append((candidate, outcome, time_s, others))
            self._exhausted = False
            self._changed.notify_all()

    def drop(self, kernel: str) -> None:
        """Requests no more configs of a kernel, once the reported results are processed."""
        with self._changed:
            self._dropped.append(kernel)

    def want(self, count: int) -> None:
        """Sets the number of candidates that should be ready, including those that are."""
        with self._changed:
            self._wanted = max(count, 0)
            self._changed.notify_all()
        if self._inline:
            while self._step():
                pass

    def take(self) -> list[Candidate]:
        """Returns the candidates that are ready.

        Raises:
            Exception: The search raised it.
        """
        with self._changed:
            if self._failure is not None:
                raise self._failure
            candidates = list(self._ready)
            self._ready.clear()
            self._wanted = max(self._wanted - len(candidates), 0)
            return candidates

    def _run(self) -> None:
        try:
            while not self._closed:
                if not self._step():
                    with self._changed:
                        if not self._closed and not self._results and not self._lacking():
                            self._changed.wait()
        except BaseException as error:
            with self._changed:
                self._failure = error

    def _lacking(self) -> int:
        """How many candidates are to be chosen now."""
        return 0 if self._exhausted else max(self._wanted - len(self._ready), 0)

    def _step(self) -> bool:
        """Processes reported results, then chooses a few configs; False if there was nothing to do."""
        with self._changed:
            results, self._results = self._results, []
            dropped, self._dropped = self._dropped, []
            count = min(self._lacking(), CHOSEN_AT_ONCE)
        start = time.perf_counter()
        for result in results:
            self._search.tell(*result)
        for kernel in dropped:
            self._search.drop(kernel)
        candidates = self._search.ask(count)
        with self._changed:
            self.thinking_s += time.perf_counter() - start
            self._ready.extend(candidates)
            if count and not candidates and not self._results:
                self._exhausted = True
        return bool(results or candidates)

    def close(self) -> None:
        """Ends the thread, without waiting for a long computation; unprocessed results are in the records.

        May be called again, and from another thread.
        """
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._wanted = 0
            self._changed.notify_all()
        if not self._inline:
            self._thread.join(CLOSE_WITHIN_S)
            if self._thread.is_alive():
                return
        self._step()
        self._search.close()
