"""What a worker's study process does with its database."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fixtures.fake_device import write_device

from tuner.devices.detect import find
from tuner.errors import StoreTrouble
from tuner.fleet import studies as studies_module
from tuner.fleet.orders import Database
from tuner.fleet.studies import Studies
from tuner.store import Store
from tuner.store.claims import PatientStore


def test_a_database_that_is_away_as_it_is_opened_is_waited_for(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "sqlite:///studies.db"
    with Store.open(url) as store:
        identity = store.identity
    away = StoreTrouble("cannot use the database: it takes no connections now")
    away.__cause__ = sa.exc.OperationalError("", {}, Exception())
    waited: list[str] = []

    def opened(told: str) -> Any:
        if not waited:
            raise away
        return PatientStore.open(told)

    class Flaky:
        """A store's class whose first opening fails."""

        open = staticmethod(opened)

    monkeypatch.setattr(studies_module, "PatientStore", Flaky)
    found = find(write_device(here / "device.json"))
    made = Studies(found, "", lambda item: nullcontext(print), lambda: waited.append("waits"))
    made.open(Database(identity, url))
    assert waited == ["waits"], "it tells its worker that it is alive"
    made.close()
