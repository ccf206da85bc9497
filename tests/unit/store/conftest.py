"""What tests of the store share."""

from pathlib import Path

import pytest
from fixtures.postgres import Databases


@pytest.fixture(params=["sqlite", "postgresql"])
def either_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database in a file, then one on a server."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'studies.db'}"
    return Databases(request.getfixturevalue("postgresql")).fresh()
