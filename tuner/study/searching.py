"""The search of a study: told what is known already, and put into the loop that measures what it asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tuner.declare.space import Space
from tuner.results.measurement import Measurement
from tuner.search import Search, SearchOptions
from tuner.search.background import AskAhead
from tuner.study.budget import TimeBudget
from tuner.study.elimination import elimination_of
from tuner.study.leaderboard import Leaderboard
from tuner.study.loop import SearchLoop
from tuner.study.predictions import with_predictions
from tuner.study.progress import Request
from tuner.study.resume import resume
from tuner.study.session import Session


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
        leaderboard: Takes in the trials, those of earlier runs too.
        budget: Time and progress.
    """
    resumed = resume(session, request, library, leaderboard)
    known = with_predictions(resumed.known, request, session.worker.info)
    options = SearchOptions(
        request.seed, session.recorder.study, request.sampler, request.trials, request.objectives,
        request.storage_url,
    )  # fmt: skip
    search = AskAhead(Search(dict(spaces), options, known), inline=session.shares_cores)
    try:
        elimination = elimination_of(request, spaces, session.worker.info, resumed.before)
        yield SearchLoop(search, session, leaderboard, budget, elimination)
    finally:
        search.close()
