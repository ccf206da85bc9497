"""What tests of the store share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.postgres import Databases

from tuner.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty database in a file."""
    with Store.open(f"sqlite:///{tmp_path}/studies.db") as opened:
        yield opened


@pytest.fixture(params=["sqlite", "postgresql"])
def either_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database in a file, then one on a server."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'studies.db'}"
    return Databases(request.getfixturevalue("postgresql")).fresh()
