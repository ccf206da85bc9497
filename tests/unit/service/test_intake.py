"""A stream of records, in pieces of any size."""

import itertools
from pathlib import Path

import pytest
import sqlalchemy as sa
import zstandard
from fixtures.records import record, square
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuner.errors import InputError, StoreTrouble
from tuner.service import records as intake_module
from tuner.service.records import Intake
from tuner.store import Store, lines, streams

TOLD = [record(square(n)) for n in range(1, 6)]
TEXT = "".join(f"{line}\n" for line in (lines.header(), *map(lines.line_of, TOLD))).encode()
PACKED = zstandard.ZstdCompressor().compress(TEXT)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    with Store.open(f"sqlite:///{tmp_path_factory.mktemp('intake')}/studies.db") as opened:
        yield opened


@given(st.lists(st.integers(0, max(len(TEXT), len(PACKED))), max_size=6), st.booleans())
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_pieces_do_not_matter(store: Store, cuts: list[int], packed: bool) -> None:
    data = PACKED if packed else TEXT
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    taking = Intake(store)
    for start, end in itertools.pairwise(places):
        taking.feed(data[start:end])
    taken = taking.finish()
    assert (taken.lines, taken.records + taken.known, taken.refused) == (6, 5, 0)
    assert streams.count(store) == 5


@given(st.binary(max_size=300))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_rubbish_is_refused(store: Store, data: bytes) -> None:
    before, taking = streams.count(store), Intake(store)
    try:
        taking.feed(data)
        taken = taking.finish()
    except InputError:
        pass
    else:
        assert taken.records == 0
    assert streams.count(store) == before


def test_a_line_without_end_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "LONGEST_LINE_BYTES", 1000)
    taking = Intake(store)
    with pytest.raises(InputError, match="a line has 1000 bytes at the most"):
        taking.feed(b"x" * 5000)


def test_a_small_stream_that_unpacks_to_much_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "MOST_BYTES", 1 << 22)
    bomb = zstandard.ZstdCompressor(level=19).compress(b"\n" * (1 << 25))
    assert len(bomb) < 10_000
    taking = Intake(store)
    with pytest.raises(InputError, match="bytes at the most are sent at once"):
        taking.feed(bomb)


def test_a_full_disk_is_told_and_what_was_stored_stays(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/studies.db") as own:
        with own._engine.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        own._engine.dispose()

        @sa.event.listens_for(own._engine, "connect")
        def small(connection: object, _: object) -> None:
            connection.execute(f"PRAGMA max_page_count={pages + 60}")  # type: ignore[attr-defined]

        taking = Intake(own)
        data = "".join(f"{lines.line_of(record(square(n)))}\n" for n in range(1, 3000)).encode()
        with pytest.raises(StoreTrouble, match="no space is left"):
            taking.feed(data)
        stored = streams.count(own)
        assert stored == taking.taken.records
