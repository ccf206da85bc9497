"""What tests of the service share: a server that anyone here may read, one with tokens, and a browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.browser import browser, may_be_missing
from fixtures.server import Server, fill, serving

from tuner.service import tokens
from tuner.store import Store


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a filled database, where everyone on this machine may do everything."""
    folder = tmp_path_factory.mktemp("filled")
    db = f"sqlite:///{folder}/studies.db"
    fill(db)
    with serving(db, folder, "--no-jobs", "--local-admin") as running:
        yield running


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, dict[str, str]]]:
    """A server with tokens, and these by their names."""
    folder = tmp_path_factory.mktemp("guarded")
    db = f"sqlite:///{folder}/studies.db"
    fill(db)
    scopes = {"keeper": "admin", "reader": "read", "sender": "read,records", "own": "submit", "other": "submit"}
    with Store.open(db) as store:
        secrets = {name: tokens.create(store, name, scope.split(","), 9.0) for name, scope in scopes.items()}
    with serving(db, folder, "--no-jobs") as running:
        yield running, secrets


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the tests of a file share."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser; no other test may find its loop of events running."""
    if may_be_missing():
        pytest.skip("there is no Chromium, and it cannot be installed here")
    with browser() as opened:
        yield opened
