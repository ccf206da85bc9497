"""A model beside surveys that it was not fitted to, as the command line asks for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tuner.errors import NothingFound
from tuner.lookup.declared import builtin_now
from tuner.lookup.model.drawn import Figures, figures
from tuner.lookup.model.fitted import Model
from tuner.lookup.model.later import later_cases, trusted
from tuner.lookup.model.shelf import regime_of
from tuner.lookup.model.stored import name_of, to_bytes
from tuner.lookup.model.surveyed import from_database
from tuner.requests.fitting import known_model
from tuner.store import Store, models


@dataclass(frozen=True)
class Checked:
    """What came of it.

    Attributes:
        model: With the margin and doubt chosen, if that was asked for.
        before: What the model said, and what was true.
        now: The same with what was chosen.
    """

    model: Model
    before: Figures
    now: Figures


def checked(
    operation: str, device: str, db: str, choose: bool, *, dtype: str = "", regime: str | None = None
) -> Checked:
    """What the model that answers says of problems of the database's surveys that it was not fitted to.

    Args:
        operation: Name of what is predicted.
        device: Name, or as commands take it.
        db: URL of the database.
        choose: True to choose by these problems when a kernel is answered, and to store the model.
        dtype: Of what is predicted; the operation's first unless given.
        regime: How times were taken; as is usual on the device unless given.

    Raises:
        NothingFound: There is no such model, no survey, or no such problem.
        InputError: There are too few to choose by.
        StoreTrouble: The database cannot be read or written.
    """
    catalogue, model = builtin_now(), known_model(operation, device, dtype, regime, db)
    declared = catalogue.operation(operation)
    dtype = dtype or declared.dtypes[0]
    kernels = {each.name: each for each in catalogue.of(operation, model.device.kind, dtype=dtype)}
    timings = from_database(db, declared, kernels.values(), model.device.name, regime_of(model), dtype)
    cases = later_cases(model, kernels, timings)
    if not cases:
        raise NothingFound(
            f"the database's surveys of {operation} time nothing that the model answers at problems that it "
            "was not fitted to; survey more"
        )
    before = figures(model, kernels, cases)
    if not choose:
        return Checked(model, before, before)
    found = trusted(model, kernels, cases)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    found = replace(found, provenance={**model.provenance, "trusted_at": at, "trusted_by": len(cases)})
    with Store.open(db) as store:
        models.add(store, name_of(declared, dtype), model.device.name, regime_of(model), to_bytes(found))
    return Checked(found, before, figures(found, kernels, cases))
