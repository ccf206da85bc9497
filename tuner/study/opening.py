"""Opens a study: devices, arrays, the library's time, and the search with all earlier knowledge."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from threadpoolctl import threadpool_limits

from tuner.devices.machine_load import MachineWatch
from tuner.store import Store
from tuner.study.baselines import measure_baseline
from tuner.study.budget import TimeBudget
from tuner.study.interruption import Interruption
from tuner.study.leaderboard import Leaderboard
from tuner.study.preparing import prepared
from tuner.study.progress import Progress, Request, Result
from tuner.study.searching import open_search
from tuner.study.setup import check_request
from tuner.study.study import Study
from tuner.workers.crew import Crew


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
