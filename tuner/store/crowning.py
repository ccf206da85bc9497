"""Adds entries to the crown log in the database; `tuner.store.rulings` says what they come to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tuner.results.crowns import Crown
from tuner.store import opening, rows, tables

if TYPE_CHECKING:
    from tuner.store import Store


def enter(store: Store, crowns: Crown | Iterable[Crown]) -> int:
    """Adds entries in one transaction; those whose id is stored already are left as they are.

    Returns:
        How many are new.

    Raises:
        InputError: An id is not a UUID.
        StoreTrouble: The database cannot be written; nothing of this call is stored.
    """
    by_id = {rows.checked_id(each.id): each for each in ([crowns] if isinstance(crowns, Crown) else crowns)}
    numbers: dict[tuple[str, ...], int] = {}
    with opening.explained(store._where), store._writing() as connection:
        there = store._there(connection, tables.crowns, list(by_id))
        fresh = [each for name, each in by_id.items() if name not in there]
        for crown in fresh:
            row: dict[str, Any] = rows.crown_row(crown)
            problem: dict[str, Any] = dict.fromkeys(("operation", "shape", "dtype", "layout"))
            number = None
            if crown.problem is not None:
                problem = rows.problem_row(crown.problem)
                number = store._once(connection, tables.problems, problem, numbers)
            row |= {"checksum": rows.checksum(row | problem, rows.CROWN), "problem": number}
            connection.execute(store._insert(tables.crowns), row)
    store._remember(numbers, fresh)
    return len(fresh)
