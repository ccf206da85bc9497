"""The coordinator's side of the claims: it takes one for each piece of work, and ends it with what came of it.

Workers write records and champions into the database themselves, each under its claim.
"""

from __future__ import annotations

from collections.abc import Callable

from tuner.fleet.orders import Answer, Database, Order
from tuner.night.standing import study_of
from tuner.night.work import Done, Place, Work
from tuner.results.record import new_id
from tuner.store import Store
from tuner.store.claims import DONE, FAILED, LOST, STOPPED, Claims, patiently


class ClaimLedger:
    """Claims of one night.

    Attributes:
        night: Id of the run of the plan.
        database: What workers are told of the database.
        slices: Orders so far.
        refused: Answers that did not count, for their claim was lost.
    """

    def __init__(self, store: Store, url: str, hold: Callable[[], None] = lambda: None) -> None:
        """Begins a night. What a coordinator that died left running is ended: only one works at a time.

        Args:
            store: The database.
            url: Its URL, as workers reach it.
            hold: Makes sure that this is still the only coordinator; raises `LockedByAnother` if not.

        Raises:
            StoreTrouble: The database stays away.
        """
        self.night = new_id()
        self.database = Database(store.identity, url)
        self.slices, self.refused = 0, 0
        self._claims, self._hold = Claims(store), hold
        patiently(lambda: self._claims.abandon("its coordinator is gone"))

    def order(self, place: Place, work: Work) -> Order:
        """Claims a study for a worker, and says what the worker is to do.

        Raises:
            LockedByAnother: Another coordinator has taken the database over.
            StoreTrouble: The database stays away.
        """
        patiently(self._hold)
        self.slices += 1
        info, what = place.info, "slice" if work.parts else "finals"
        study = study_of(work.item, info, work.kernels)
        claim = patiently(lambda: self._claims.take(self.night, study, what, place.name, info.name, info.uuid))
        return Order.of(work, self.night, claim, study, self.database)

    def accept(self, answer: Answer) -> Done | None:
        """Ends the claim of an answer; None if it was lost before, so that only its records count.

        Raises:
            StoreTrouble: The database stays away.
        """
        state, why = _state_of(answer.done)
        trials = answer.done.trials.get("total")
        if patiently(lambda: self._claims.end(answer.claim, state, why, trials)):
            return answer.done
        self.refused += answer.done.finished is not None
        return None

    def lost(self, claim: int, why: str) -> None:
        """Declares the worker of a claim dead: its records will count, its champion will not."""
        patiently(lambda: self._claims.end(claim, LOST, why))

    def close(self) -> None:
        """Ends the claims that are left of this night."""
        patiently(lambda: self._claims.abandon("its coordinator ended", self.night))


def _state_of(done: Done) -> tuple[str, str]:
    if done.lost:
        return (STOPPED if done.cut else FAILED), done.lost
    return (FAILED, done.failed) if done.failed else (DONE, "")
