"""Published results without those that a database has retracted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from tuner.published.form import Published

if TYPE_CHECKING:
    from tuner.store.reading import Reader


def standing(published: Iterable[Published], store: Reader | None) -> list[Published]:
    """Returns results whose champion and records still count in a database, with such runners-up.

    Args:
        published: Results.
        store: The database; if None, nothing is retracted.
    """
    found = list(published)
    if store is None or not found:
        return found
    from tuner.store import retracting

    if not retracting.any_retracted(store):
        return found
    named = {each for result in found for each in _ids(result)}
    beside = {each.record_id for result in found for each in result.runners_up if each.record_id}
    gone = retracting.retracted(store, named | beside)
    return [
        replace(each, runners_up=tuple(one for one in each.runners_up if one.record_id not in gone))
        for each in found
        if not any(name in gone for name in _ids(each))
    ]


def _ids(published: Published) -> list[str]:
    champion = published.champion
    return [champion.id, champion.record.id, *([champion.baseline.id] if champion.baseline else [])]
