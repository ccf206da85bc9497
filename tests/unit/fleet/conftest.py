"""A fleet of four rehearsed workers for the tests of a module, each with its own board."""

from collections.abc import Iterator

import pytest
from fixtures.fleets import Fleet, scheduler


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Four workers and a scheduler."""
    with scheduler() as address:
        fleet = Fleet(tmp_path_factory.mktemp("fleet"), address)
        fleet.settings()
        try:
            for name in ("n1", "n2", "n3", "n4"):
                fleet.add(name)
            yield fleet
        finally:
            fleet.stop()


@pytest.fixture
def fleet(four: Fleet, request: pytest.FixtureRequest) -> Fleet:
    """The four, all alive, with an empty database and no faults."""
    four.database = f"{request.node.name.partition('[')[0]}.db"
    four.settings()
    four.revive()
    return four
