"""What tests of lookups share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty database."""
    with Store.open(f"sqlite:///{tmp_path}/studies.db") as opened:
        yield opened
