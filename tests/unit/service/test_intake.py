"""Files of records that a program sends, whatever is in them."""

import contextlib
from pathlib import Path

import pytest
import sqlalchemy as sa
import zstandard
from fixtures.records import record, square
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuner.errors import InputError, StoreTrouble
from tuner.service.records import take_file
from tuner.store import Store, exchange, lines, listing


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("intake")


@pytest.fixture(scope="module")
def store(folder: Path) -> Store:
    with Store.open(f"sqlite:///{folder}/studies.db") as opened:
        yield opened


def taken(store: Store, folder: Path, data: bytes) -> dict:
    (folder / "sent").write_bytes(data)
    return take_file(store, folder / "sent")


@given(st.binary(max_size=300))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_rubbish_is_refused(store: Store, folder: Path, data: bytes) -> None:
    before = listing.count(store)
    with contextlib.suppress(InputError):
        assert taken(store, folder, data)["records"] == 0
    assert listing.count(store) == before


def test_a_small_file_with_a_long_line_is_refused(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "LONGEST_LINE_BYTES", 1 << 20)
    with pytest.raises(InputError, match="bytes, and a line"):
        taken(store, folder, zstandard.ZstdCompressor(level=19).compress(b"x" * (1 << 24)))


def test_a_full_disk_is_told_and_what_was_stored_stays(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/studies.db") as own:
        with own._engine.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        own._engine.dispose()

        @sa.event.listens_for(own._engine, "connect")
        def small(connection: object, _: object) -> None:
            connection.execute(f"PRAGMA max_page_count={pages + 60}")  # type: ignore[attr-defined]

        data = "".join(f"{lines.line_of(record(square(n)))}\n" for n in range(1, 1500)).encode()
        with pytest.raises(StoreTrouble, match="no space is left"):
            taken(own, tmp_path, data)
        assert listing.count(own) % exchange.BATCH == 0, "batches are stored whole"
