"""A study: a budgeted search by trials, then the finals.

The study is the only process that writes the database, and it never touches a device: workers do.
"""

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace

from threadpoolctl import threadpool_limits

from tuner.declare.kernel import Fallback, Kernel, render
from tuner.declare.problem import IEEE
from tuner.declare.space import Config, Space
from tuner.devices.detect import kind_of
from tuner.devices.machine_load import MachineWatch
from tuner.errors import NothingFound
from tuner.lookup import answer
from tuner.lookup.answers import EXACT
from tuner.results.measurement import Measurement, Outcome
from tuner.results.objectives import ANY_BITS, TIME, Front, values_of
from tuner.results.record import Champion, ProblemKey, Record, Role
from tuner.search import Candidate, Known, Observation, Search, SearchOptions
from tuner.store import Store
from tuner.study.finals import Finals, measure_baseline
from tuner.study.leaderboard import Leaderboard, found_wrong, front_of
from tuner.study.loop import Loop, TrialPolicy
from tuner.study.progress import Interruption, Progress, Result, TimeBudget
from tuner.study.requests import StudyRequest, check_energy, check_request, legal_spaces
from tuner.study.session import Session, study_name
from tuner.study.starting import held_class, resume, with_predictions
from tuner.workers.bench import Bench, CompiledConfig
from tuner.workers.device_worker import LONG_LIMIT_S, Crew, DeviceWorker, first_limit_s, run_limit_s
from tuner.workers.process import call_of

#: A space of so many configs has a first rung, in this share of a study's time at the most.
RUNG_CONFIGS, RUNG_SHARE = range(33, 513), 1 / 3
#: Configs that a device is sent at a time there; the fastest share of them, which is tried next.
RUNG_AHEAD, RUNG_KEPT = 8, 1 / 8
#: Seconds that arrays and reference have, and the library's time, however short a study is.
LEAST_OPENING_S = 3.0
#: What the search is told of a candidate: its outcome, its time, and the objectives after that.
_Result = tuple[Candidate, Outcome, float | None, tuple[float, ...]]


class SearchPolicy(TrialPolicy):
    """Proposes what a search suggests, until the trials are done; the leaderboard ranks the results.

    The search works in a thread, while devices measure. Inline, on a CPU, it works only inside `propose`.

    Attributes:
        kernels: The competitors by name.
        leaderboard: Ranks the measured configs.
    """

    prunes_spills = True

    def __init__(
        self, kernels: Sequence[Kernel], search: Search, leaderboard: Leaderboard, inline: bool,
        trials: int | None = None, drops: bool = False,
    ) -> None:  # fmt: skip
        """Begins.

        Args:
            kernels: The competitors.
            search: Suggests configs; nothing else may use it from now on.
            leaderboard: To update, with its progress.
            inline: True for no thread.
            trials: Trials in all, those of earlier runs included; None for no limit.
            drops: True to drop hopeless kernels.
        """
        super().__init__(kernels)
        self.leaderboard, self._progress = leaderboard, leaderboard.progress
        self._search, self._most, self._drops = search, trials, drops
        self._thread = None if inline else ThreadPoolExecutor(1, "search")
        self._asked: Future[list[Candidate]] | None = None
        self._results: list[_Result] = []
        self._dropped: list[str] = []
        self._count, self._exhausted = 0, False
        self._drop()

    def propose(self, room: int, under_way: int) -> Sequence[Candidate]:
        """What the search has ready; it then is told the results, and asked for what there is room for."""
        if self._most is not None:
            room = min(room, self._most - self._progress.trials - under_way)
        if self._asked is not None and not self._asked.done():
            return ()
        ready = self._took(self._asked.result()) if self._asked is not None else []
        self._count = 0 if self._exhausted else max(room - len(ready), 0)
        work, self._asked = (self._results, self._dropped, self._count), None
        if any(work):
            self._results, self._dropped = [], []
            if self._thread is None:
                return self._took(self._step(*work))
            self._asked = self._thread.submit(self._step, *work)
        return ready

    def _took(self, candidates: list[Candidate]) -> list[Candidate]:
        """What the search chose; if it is less than was asked for, it waits for results."""
        self._exhausted = self._exhausted or (len(candidates) < self._count and not self._results)
        return candidates

    def _step(self, results: Sequence[_Result], dropped: Sequence[str], count: int) -> list[Candidate]:
        """Tells the search what came of its configs, then asks for some."""
        begun_s = time.perf_counter()
        for result in results:
            self._search.tell(*result)
        for kernel in dropped:
            self._search.drop(kernel)
        candidates = self._search.ask(count)
        self._progress.spend("thinking", time.perf_counter() - begun_s)
        return candidates

    def ended(self) -> str:
        """It ends with the last trial."""
        done = self._most is not None and self._progress.trials >= self._most
        return "all trials are done" if done else ""

    def exhausted(self) -> str:
        """The search has stopped, or knows nothing more to try until a result comes."""
        more = not self._exhausted or self._results or self._asked is not None
        return "" if more else self._search.stopped or "nothing is left to try"

    def wants(self, candidate: Candidate) -> bool:
        """False if the kernel was dropped after this request; the search is told."""
        if candidate.kernel not in self._progress.dropped:
            return True
        self._tell(candidate, Outcome.INVALID, None)
        return False

    def to_beat_s(self, candidate: Candidate) -> float | None:
        """The best time; none with several objectives, for a slow config may save energy."""
        return self.leaderboard.best_s if len(self.leaderboard.objectives) == 1 else None

    def learn(self, candidate: Candidate, measurement: Measurement) -> None:
        """Ranks the config, and drops kernels that are hopeless by now."""
        self.leaderboard.add_trial(self.kernels[candidate.kernel], candidate.config, measurement)
        self._drop()

    def stored(self, candidate: Candidate, record: Record) -> None:
        """Tells the search only now, so that nothing it knows can be lost.

        Raises:
            InputError: The device does not report what an objective needs.
        """
        measurement, objectives = self.leaderboard.judged(record.measurement), self.leaderboard.objectives
        check_energy(objectives, record.device, record.measurement)
        values = values_of(measurement, objectives) or ()
        time_s = measurement.time_s if values or len(objectives) == 1 else None
        self._tell(candidate, measurement.outcome, time_s, values[1:])

    def close(self) -> None:
        """Ends the search's thread; the records have what the search has not heard of."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _tell(
        self, candidate: Candidate, outcome: Outcome, time_s: float | None, others: tuple[float, ...] = ()
    ) -> None:
        self._results.append((candidate, outcome, time_s, others))
        self._exhausted = False

    def _drop(self) -> None:
        if self._drops:
            reasons = self.leaderboard.hopeless()
            self._progress.dropped |= reasons
            self._dropped += reasons


class FirstRung(TrialPolicy):
    """Runs each config once, unverified: a search begins with those that may be the fastest.

    It is the first rung of successive halving (Jamieson and Talwalkar 2016); its results are no records.

    Attributes:
        observations: What came of the configs.
    """

    prunes_spills, recorded = True, False
    at_a_time = RUNG_AHEAD

    def __init__(self, kernels: Sequence[Kernel], spaces: Mapping[str, Space], seed: int) -> None:
        """Begins.

        Args:
            kernels: The competitors.
            spaces: Their legal configs.
            seed: Of the order, for there may not be time for all.
        """
        configs = [(name, config) for name, space in spaces.items() for config in space]
        random.Random(seed).shuffle(configs)
        # The search counts from 0: what is still compiled at the end must not be taken for one of its configs.
        super().__init__(kernels, [Candidate(*one, ~number) for number, one in enumerate(configs)])
        self.observations: list[Observation] = []

    def begin(self, worker: DeviceWorker, candidate: Candidate, code: CompiledConfig) -> None:
        """Has a config run."""
        best_s = min((one.time_s for one in self.observations if one.time_s), default=None)
        message = call_of(Bench.run_once, compiled_config=code, first_limit_s=first_limit_s(best_s))
        worker.send(message, run_limit_s(best_s))

    def learn(self, candidate: Candidate, measurement: Measurement) -> None:
        """Keeps a time."""
        outcome, time_s = measurement.outcome, measurement.time_s
        self.observations.append(Observation(candidate.kernel, candidate.config, outcome, time_s))

    def known(self, before: Known) -> Known:
        """What a search then knows: the fastest go first, and the times are predictions."""
        timed = sorted((one.time_s, at) for at, one in enumerate(self.observations) if one.time_s)
        kept = [self.observations[at][:2] for _, at in timed[: math.ceil(RUNG_KEPT * len(timed))]]
        elsewhere = max(self.observations, before.elsewhere, key=len)  # there was not time for all
        return replace(before, starts=[*kept, *before.starts], elsewhere=elsewhere, foretold=True)


def left_s(until_s: float) -> float:
    """Seconds until a time of `time.monotonic`, but a few at the least, which small problems need."""
    return max(until_s - time.monotonic(), LEAST_OPENING_S)


class Study:
    """A study whose devices, spaces and search are open: `search` any number of times, then `finals` once.

    Attributes:
        request: Its request.
        session: Devices and compile workers.
        budget: Its time.
        progress: Its progress.
        library: The library's measurement before the search; None without a library.
        leaderboard: Ranks the trials that still count.
        policy: The search with all earlier knowledge.
    """

    def __init__(
        self, request: StudyRequest, session: Session, budget: TimeBudget, machine: MachineWatch,
        interruption: Interruption,
    ) -> None:  # fmt: skip
        """Makes the arrays, times the library, and reads what is known.

        Args:
            request: Its request.
            session: Devices and compile workers.
            budget: Time and progress.
            machine: Watches the machine's load.
            interruption: Handles signals.
        """
        self.session, self.budget, self._machine, self._interruption = session, budget, machine, interruption
        self.progress = budget.progress
        budget.states_s = kind_of(session.device.kind).states_s
        options = SearchOptions(request.seed, request.sampler, request.trials, request.objectives)
        spaces = legal_spaces(request.kernels, request.problem, session.device)
        until_s = time.monotonic() + (LONG_LIMIT_S if request.seconds is None else request.seconds)
        session.prepare(left_s(until_s))
        self.request = request = replace(request, kernels=with_plain_answers(session, request.kernels))
        self.library = measure_baseline(session, request, budget, machine, left_s(until_s))
        cores = session.device.cores if session.shares_cores else 1
        held = held_class(session, request, self.library)
        self.leaderboard = leaderboard = Leaderboard(request.objectives, budget.progress, cores, held)
        known = resume(session, request, self.library, leaderboard)
        known = self._foretold(with_predictions(known, request, session.device, session.store), spaces)
        search = Search(spaces, options, known)
        # Where all configs are asked for none is dropped, nor where slow ones may save energy.
        drops = request.drop and request.sampler != "bruteforce" and len(request.objectives) == 1
        self.policy = SearchPolicy(
            request.kernels, search, leaderboard, session.shares_cores, request.trials, drops
        )
        if session.problem.precision != IEEE:
            session.worker.rehearse()
        self._loop = Loop(session, self.policy, budget)

    def _foretold(self, known: Known, spaces: Mapping[str, Space]) -> Known:
        """What a new search knows: if spaces are small and no model foretells times, those of a first rung."""
        request, share_s = self.request, RUNG_SHARE * (self.budget.search_left_s or math.inf)
        is_searched = request.sampler == "tile" and request.objectives == TIME and not self.session.shares_cores
        is_small = sum(map(len, spaces.values())) in RUNG_CONFIGS
        if known.foretold or known.past or not (is_searched and is_small):
            return known
        rung = FirstRung(request.kernels, spaces, request.seed)
        Loop(self.session, rung, self.budget).run(share_s)
        return rung.known(known) if rung.observations else known

    def search(self, seconds: float | None = None) -> str:
        """Searches.

        Args:
            seconds: After this time it pauses; None to go on until the search ends.

        Returns:
            Reason why the search ended; empty if it can go on.

        Raises:
            DeviceTrouble: A device stays unwell.
            Interrupted: SIGINT or SIGTERM came.
        """
        self.budget.tick("searching")
        with self._interruption.ends(self._loop):
            return self._loop.run(seconds)

    def finals(self) -> Result:
        """Plays the finals.

        Raises:
            DeviceTrouble: The device does not survive them.
            Interrupted: SIGINT or SIGTERM came.
        """
        self.policy.close()
        self.observe_load()
        self.budget.tick("finals")
        with self.budget.spent("finals"):
            finals = Finals(self.session, self.request.kernels, self._machine)
            champion = finals.play(self.leaderboard, self.budget.finals_left_s)
        self.budget.tick("done")
        return Result(champion, self.progress, self._loop.stop, self._front(champion))

    def observe_load(self) -> None:
        """Notes what is wrong with the machine; if nothing is now, the earlier observation stays."""
        self.progress.busy = self._machine.complaints() or self.progress.busy

    def _front(self, champion: Champion | None) -> Front | None:
        """The Pareto front; None with one objective."""
        if len(self.request.objectives) == 1:
            return None
        session, wrong = self.session, found_wrong(self.session.records(Role.FINAL, self.policy.kernels))
        library = (session.of_baseline(self.library).kernel, self.library) if self.library else None
        measured = {place: one for place, one in self.leaderboard.with_objectives.items() if place not in wrong}
        record = champion.record if champion is not None else None
        return front_of(measured, self.request.objectives, record, library, asdict(session.problem.work))


def run_study(
    request: StudyRequest, store: Store, report: Callable[[Progress], None] = lambda progress: None
) -> Result:
    """Searches until the budget is spent or nothing is left to try, then plays the finals.

    Args:
        request: What to do.
        store: Where records go.
        report: Called a few times a second.

    Raises:
        NothingFound: No config is legal; the message says how many each constraint rejects.
        InputError: The problem does not fit into memory, or the device cannot measure an objective.
        DeviceTrouble: A device cannot be opened or stays unwell; finished trials are kept.
        Interrupted: SIGINT or SIGTERM came; finished trials are kept.
    """
    with open_study(request, store, report) as study:
        study.search()
        return study.finals()


@contextmanager
def open_study(
    request: StudyRequest, store: Store, report: Callable[[Progress], None] = lambda progress: None,
    crew: Crew | None = None,
) -> Iterator[Study]:  # fmt: skip
    """Opens a study: devices, arrays, the library's time, and the search with all earlier knowledge.

    At the end of the block all measurements are stored.

    Args:
        request: What to do.
        store: Where records go.
        report: Called a few times a second.
        crew: Workers of the request's devices, which the caller closes; by default the study has its own.

    Raises:
        NothingFound: No config is legal; the message says how many each constraint rejects. Or the arrays, the
            reference and the library's time take longer than the study may.
        InputError: The problem does not fit into memory, or the device cannot measure an objective.
        DeviceTrouble: A device cannot be opened.
        Interrupted: SIGINT or SIGTERM came.
    """
    budget, interruption = TimeBudget(request.seconds, report, request.finals_s), Interruption()
    with ExitStack() as stack:
        stack.enter_context(interruption.handled())
        # The search's matrices are small: more BLAS threads would only compete with the compile workers for
        # cores.
        stack.enter_context(threadpool_limits(1, "blas"))
        budget.tick("opening")
        machine = MachineWatch(request.found)
        with budget.spent("opening"):
            check_request(request)
            if crew is None:
                crew = stack.enter_context(closing(Crew(request.found)))
            crew.open()
            session = stack.enter_context(session_of(request, store, crew))
            study = Study(request, session, budget, machine, interruption)
            stack.callback(study.policy.close)
        study.observe_load()
        machine.restart()
        yield study


def session_of(request: StudyRequest, store: Store, crew: Crew) -> Session:
    """The session of a study, on open devices."""
    name = study_name(
        ProblemKey.of(request.problem), crew.devices[0].info, request.regime, request.kernels,
        request.objectives, request.error_limit, request.bits,
    )  # fmt: skip
    is_energy = "energy" in request.objectives
    limits = request.error_limit, request.seconds, request.bits == ANY_BITS
    return Session(crew, store, request.problem, request.regime, name, is_energy, *limits)


def with_plain_answers(session: Session, kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """The kernels of a study; the champion of the ``ieee`` problem stands behind those that fall back.

    It does so if it keeps the promise of the study's precision itself, for all kinds of inputs, and its run is
    one launch. Otherwise the declared fallback stays.

    Args:
        session: The study's, prepared.
        kernels: The study's kernels.
    """
    champion = _plain_champion(session) if any(kernel.scope.fallback for kernel in kernels) else ""

    def chosen(declared: Kernel) -> Kernel:
        backed = declared.as_recorded(champion, session.problem, session.worker.info)
        fallback = backed.scope.fallback
        if fallback is None or fallback is declared.scope.fallback or not _keeps_the_promise(session, fallback):
            return declared
        return backed

    return tuple(map(chosen, kernels))


def _plain_champion(session: Session) -> str:
    """Kernel and config that were measured to be best in ``ieee``; empty if none was, or the library is."""
    key = replace(ProblemKey.of(session.problem), precision=IEEE)
    try:
        plain = answer(session.store, key, session.device, session.regime)
    except NothingFound:
        return ""
    words = [plain.kernel, *(f"{name}={value}" for name, value in plain.config.items())]
    return " ".join(words) if plain.match == EXACT else ""


def _keeps_the_promise(session: Session, fallback: Fallback) -> bool:
    """Whether a plain kernel is right for all kinds of inputs; finals find that out."""
    rendered = render(fallback.kernel, session.problem, Config(fallback.config({})))
    compiled = session.pool.compile_all({0: rendered})
    return bool(compiled) and session.worker.finals([compiled[0]], 0.0)[0].outcome is Outcome.MEASURED
