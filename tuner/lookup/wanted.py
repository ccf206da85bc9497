"""The most wanted problems: asked for, not tuned, and with most seconds to be saved."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from tuner.declare.catalogue import Catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.lookup.answers import Question, declared_problem
from tuner.lookup.declared import builtin_now
from tuner.lookup.demand import COLD
from tuner.lookup.legality import completed
from tuner.lookup.snapshot import Snapshot
from tuner.lookup.tiers import Case, exact
from tuner.results.wanted import Wanted

if TYPE_CHECKING:
    from tuner.store import Store


def most_wanted(
    store: Store, *, device: str = "", operation: str = "", limit: int | None = None
) -> list[Wanted]:
    """What was asked and still has no exact answer, by seconds to be saved, the most first.

    Args:
        store: Where demand is counted.
        device: Only on devices of this name; on all where empty.
        operation: Only of this operation; of all where empty.
        limit: How many at the most; all when None.
    """
    return list(islice(_open(store, device, operation), limit))


def _open(store: Store, device: str, operation: str) -> Iterator[Wanted]:
    from tuner.store.demand import read

    snapshot, catalogue = Snapshot.open(store), builtin_now()
    for each in read(store, device=device, operation=operation):
        if not _is_tuned(each, snapshot, catalogue):
            yield each


def _is_tuned(wanted: Wanted, snapshot: Snapshot, catalogue: Catalogue) -> bool:
    device = completed(DeviceInfo(wanted.device, wanted.kind), snapshot.devices())
    question = Question(wanted.problem, device, COLD)
    return exact(Case(question, snapshot, catalogue, declared_problem(question, catalogue))) is not None
