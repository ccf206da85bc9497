"""Puts the best plain kernel of a problem behind kernels that do not take every input, before a study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tuner.declare.fallback import Fallback
from tuner.declare.kernel import Kernel
from tuner.declare.problem import IEEE
from tuner.declare.space import Config
from tuner.errors import NothingFound
from tuner.lookup import answer
from tuner.lookup.answers import EXACT
from tuner.results.measurement import Measurement, Outcome
from tuner.study.session import Session
from tuner.study.setup import key_of


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
