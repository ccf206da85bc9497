"""Opens a study: devices, arrays, the library's time, and the search with all earlier knowledge."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from threadpoolctl import threadpool_limits

from tuner.declare.kernel import Fallback, Kernel
from tuner.declare.problem import IEEE
from tuner.declare.space import Config, Space
from tuner.devices.machine_load import MachineWatch
from tuner.errors import NothingFound
from tuner.lookup import answer
from tuner.lookup.answers import EXACT
from tuner.results.measurement import Measurement, Outcome
from tuner.search import Search, SearchOptions
from tuner.search.background import BackgroundSearch
from tuner.store import Store
from tuner.study.baselines import measure_baseline
from tuner.study.budget import Interruption, TimeBudget
from tuner.study.leaderboard import Leaderboard, elimination_of
from tuner.study.loop import SearchLoop
from tuner.study.progress import Progress, Request, Result
from tuner.study.recorder import Recorder
from tuner.study.resume import resume
from tuner.study.session import Conditions, Session
from tuner.study.setup import check_request, key_of, legal_spaces, study_name
from tuner.study.starting import with_predictions
from tuner.study.study import Study
from tuner.workers.device_worker import Crew


def with_plain_answers(session: Session, kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """The kernels of a study; the champion of the ``ieee`` problem stands behind those that fall back.

    It does so if it keeps the promise of the study's precision itself, for all kinds of inputs, and its run is
    one launch. Otherwise the declared fallback stays.

    Args:
        session: The study's, prepared.
        kernels: The study's kernels.
    """
    told = _champion(session) if any(kernel.fallback for kernel in kernels) else ""
    found = [kernel.as_recorded(told, session.problem, session.worker.info) for kernel in kernels]
    kept = {
        each.fallback.name: _keeps_the_promise(session, each.fallback)
        for each, declared in zip(found, kernels, strict=True)
        if each.fallback is not None and each.fallback is not declared.fallback
    }
    return tuple(
        each if each.fallback is not None and kept.get(each.fallback.name) else declared
        for each, declared in zip(found, kernels, strict=True)
    )


def _champion(session: Session) -> str:
    """Kernel and config that were measured to be best in ``ieee``; empty if none was, or the library is."""
    recorder = session.recorder
    key = replace(key_of(session.problem), precision=IEEE)
    try:
        found = answer(session.store, key, recorder.device, recorder.regime)
    except NothingFound:
        return ""
    if found.match != EXACT:
        return ""
    return " ".join([found.kernel, *(f"{name}={value}" for name, value in found.config.items())])


def _keeps_the_promise(session: Session, fallback: Fallback) -> bool:
    """Whether a plain kernel is right for all kinds of inputs; finals find that out."""
    compiled = session.compile(fallback.kernel, Config(fallback.config({})))
    if isinstance(compiled, Measurement):
        return False
    return session.worker.finals([compiled], 0.0)[0].outcome is Outcome.MEASURED


def prepared(
    request: Request, store: Store, crew: Crew, stack: ExitStack
) -> tuple[Session, Request, Mapping[str, Space]]:
    """Makes what a search starts from; the stack closes what it holds.

    Args:
        request: What to do.
        store: Where records go.
        crew: Open workers of equal devices.
        stack: Closes the session.

    Returns:
        The session, the request with the best plain kernel behind kernels that fall back, and the legal configs
        of each kernel.

    Raises:
        NothingFound: No config is legal.
        InputError: The problem does not fit into memory.
    """
    first, problem = crew.devices[0], request.problem
    info = first.info
    name = study_name(
        key_of(problem), info, request.regime, request.kernels, request.objectives, request.error_limit
    )
    recorder = Recorder(store, problem, info, request.regime, first.versions, name)
    conditions = Conditions(request.regime, "energy" in request.objectives, request.error_limit)
    session = stack.enter_context(Session(crew, problem, recorder, conditions))
    session.start_compiling()
    spaces = legal_spaces(request.kernels, problem, info)
    session.prepare()
    return session, replace(request, kernels=with_plain_answers(session, request.kernels)), spaces


@contextmanager
def open_search(
    session: Session,
    request: Request,
    spaces: Mapping[str, Space],
    library: Measurement | None,
    leaderboard: Leaderboard,
    budget: TimeBudget,
) -> Iterator[SearchLoop]:
    """Opens the search; its thread ends with the block.

    Args:
        session: Compiles, measures and stores.
        request: What the study is asked to do.
        spaces: Kernel -> its legal configs.
        library: The library's time before the search.
        leaderboard: Receives the trials, including earlier runs.
        budget: Time and progress.
    """
    resumed = resume(session, request, library, leaderboard)
    known = with_predictions(resumed.known, request, session.worker.info, session.store)
    options = SearchOptions(
        request.seed, session.recorder.study, request.sampler, request.trials, request.objectives,
        request.storage_url,
    )  # fmt: skip
    search = BackgroundSearch(Search(dict(spaces), options, known), inline=session.shares_cores)
    try:
        elimination = elimination_of(request, spaces, session.worker.info, resumed.before)
        yield SearchLoop(search, session, leaderboard, budget, elimination)
    finally:
        search.close()


def _silent(progress: Progress) -> None:
    """Reports nothing."""


def run_study(request: Request, store: Store, report: Callable[[Progress], None] = _silent) -> Result:
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
    request: Request, store: Store, report: Callable[[Progress], None] = _silent, crew: Crew | None = None
) -> Iterator[Study]:
    """Opens a study. At the end of the block all measurements are stored.

    Args:
        request: What to do.
        store: Where records go.
        report: Called a few times a second.
        crew: Workers of the request's devices, which the caller closes; by default the study has its own.

    Raises:
        NothingFound: No config is legal; the message says how many each constraint rejects.
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
            if crew is None:
                crew = stack.enter_context(contextlib.closing(Crew(request.found)))
            study = _opened(request, store, crew, budget, machine, interruption, stack)
        budget.progress.observe_load(machine.told())
        machine.restart()
        yield study


def _opened(
    request: Request, store: Store, crew: Crew, budget: TimeBudget, machine: MachineWatch,
    interruption: Interruption, stack: ExitStack,
) -> Study:  # fmt: skip
    """Makes the study; the stack closes what it holds."""
    check_request(request)
    crew.open()
    session, request, spaces = prepared(request, store, crew, stack)
    library = measure_baseline(session, request, budget, machine)
    leaderboard = Leaderboard(request.objectives, budget.progress)
    loop = stack.enter_context(open_search(session, request, spaces, library, leaderboard, budget))
    return Study(request, session, loop, leaderboard, budget, machine, interruption, library)
