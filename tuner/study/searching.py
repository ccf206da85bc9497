"""Opens the search of a study with earlier knowledge, and connects it to the loop that measures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tuner.declare.space import Space
from tuner.results.measurement import Measurement
from tuner.search import Search, SearchOptions
from tuner.search.background import BackgroundSearch
from tuner.study.budget import TimeBudget
from tuner.study.elimination import elimination_of
from tuner.study.leaderboard import Leaderboard
from tuner.study.loop import SearchLoop
from tuner.study.progress import Request
from tuner.study.resume import resume
from tuner.study.session import Session
from tuner.study.starting import with_predictions


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
