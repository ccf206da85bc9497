"""Studies for optuna-dashboard, made of records when somebody looks."""

from __future__ import annotations

import functools

from tuner.results.objectives import TIME
from tuner.results.record import OBJECTIVES_OF_STUDY, Role
from tuner.search.optuna_study import Shown
from tuner.store import listing
from tuner.store.reading import Reader
from tuner.study.resume import observed, that_count

#: Studies that are shown before one is asked for: the last ones.
LAST = 20


@functools.cache
def shown(url: str) -> Shown:
    """What is shown of a database."""
    return Shown()


def show(store: Reader, name: str, at: Shown) -> int | None:
    """Shows a study with the trials that it has now.

    Returns:
        Its number; None if the database has no trial of it.
    """
    records = [each for each in store.records(study=name) if each.role is Role.TRIAL]
    if not records:
        return None
    objectives = objectives_of(name)
    trials = that_count(records, objectives).values()
    return at.add(name, objectives, [observed(each, objectives) for each in trials])


def show_last(store: Reader, at: Shown) -> int:
    """Shows the last studies; returns how many there are."""
    names = listing.last_studies(store, LAST)
    return sum(show(store, name, at) is not None for name in names)


def objectives_of(study: str) -> tuple[str, ...]:
    """The objectives that a study's name tells."""
    told = study.partition(OBJECTIVES_OF_STUDY)[2].partition(",")[0].split()
    return tuple(told) or TIME
