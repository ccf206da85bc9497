"""Prepares a study's session on open devices: its arrays, its competitors and their spaces."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace

from tuner.declare.space import Space
from tuner.store import Store
from tuner.study.plain_behind import with_plain_answers
from tuner.study.progress import Request
from tuner.study.recorder import Recorder
from tuner.study.session import Conditions, Session
from tuner.study.setup import key_of, legal_spaces, study_name
from tuner.workers.crew import Crew


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
