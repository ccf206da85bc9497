"""Records that a program sends, whatever is in them: taken once, or refused with reason and line."""

import contextlib
import socket
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from fixtures.fake_device import ROOT
from fixtures.server import ASKED, Server, eventually, gemm, record, serving
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuner.errors import InputError
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import Record
from tuner.service.records import take_file
from tuner.store import Store, exchange, lines, listing

GOOD = record(gemm(70, 70, 70), 1e-3)


@pytest.fixture(scope="module")
def store(folder: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{folder}/studies.db") as opened:
        yield opened


def written(*records: Any) -> bytes:
    return "".join(f"{line}\n" for line in (lines.header(), *map(lines.line_of, records))).encode()


def taken(store: Store, folder: Path, data: bytes) -> dict[str, Any]:
    (folder / "sent").write_bytes(data)
    return take_file(store, folder / "sent")


@pytest.mark.parametrize("packed", [False, True])
def test_records_are_taken_once(filled: Server, packed: bool) -> None:
    body = written(*(record(gemm(64, 64, 10 + n + 1000 * packed), 1e-3) for n in range(600)))
    more = body + lines.line_of(record(gemm(67, 67, 67 + packed), 1e-3)).encode()
    bodies = [zstandard.ZstdCompressor().compress(each) if packed else each for each in (body, more)]
    first, again = (filled.post("/v1/records", content=sent).json() for sent in bodies)
    assert (first["records"], first["known"], first["refused"], first["lines"]) == (600, 0, 0, 601)
    assert (again["records"], again["known"]) == (1, 600)


def test_an_intake_ends_with_its_sender_and_with_the_server_and_what_was_stored_stays(tmp_path: Path) -> None:
    """...on a server that takes a record each 50 ms."""
    code = """
import time
from tuner.service import app, records
app.END_WITHIN_S = records.BATCH = 1
taken = records.taken
records.taken = lambda *lines: time.sleep(0.05) or taken(*lines)
"""
    (tmp_path / "sitecustomize.py").write_text(code)
    db, options = f"sqlite:///{tmp_path}/studies.db", ("--no-jobs", "--local-admin")
    with serving(db, tmp_path, *options, PYTHONPATH=f"{tmp_path}:{ROOT}") as slow, Store.open(db) as store:
        for size, end in ((61, lambda: None), (62, slow.close)):
            body = written(*(record(gemm(size, size, 1 + n), 1e-3) for n in range(2000)))
            head = f"POST /v1/records HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
            before = listing.count(store)
            with socket.create_connection(("127.0.0.1", slow.port)) as raw:
                raw.sendall(head.encode() + body)
                eventually(lambda before=before: listing.count(store) > before)
                end()
            eventually(lambda: '"path": "/v1/records"' in slow.log.read_text())
            assert listing.count(store) < before + 2000


def test_lines_that_are_no_records_are_refused_with_reasons(store: Store, folder: Path) -> None:
    good = record(gemm(65, 65, 65), 1e-3)
    body = written(good) + b'{"record": {}}\nnonsense\n\xff\xfe\n{"tile_tuner": "records", "format": 99}\n'
    told = taken(store, folder, body)
    assert (told["records"], told["refused"]) == (1, 4)
    assert [reason["line"] for reason in told["reasons"]] == [3, 4, 5, 6]
    assert "it lacks" in told["reasons"][0]["reason"]
    assert store.record(good.id) is not None


def with_samples(*samples_s: float) -> Record:
    return record(gemm(8, 8, 8), measurement=Measurement(Outcome.MEASURED, samples_s=samples_s))


@pytest.mark.parametrize(("bad", "why"), [
    (with_samples(float("nan")), "a sample is a time in seconds above 0, got nan"),
    (with_samples(1e-3, -1.0), "a sample is a time in seconds above 0, got -1.0"),
    (replace(GOOD, config={"BLOCK": [1, 2]}), "a config has numbers and texts, got [1, 2]"),
    (record(gemm(10**30, 8, 8)), "a dim is a whole number of 1 to 2147483647"),
    (replace(GOOD, kernel="k" * 100_000), "a name has up to 200 characters, got 100000"),
    (replace(GOOD, study="s" * 200_000), "a text has up to 100000 characters"),
])  # fmt: skip
def test_impossible_records_are_refused(store: Store, folder: Path, bad: Record, why: str) -> None:
    told = taken(store, folder, written(bad, record(gemm(9, 9, 9))))
    assert (told["records"], told["refused"], told["reasons"][0]["line"]) == (1, 1, 2)
    assert why in told["reasons"][0]["reason"]


@pytest.mark.parametrize("character", [b"\\u0000", b"\\ud800"])
def test_a_text_that_databases_refuse_costs_its_line(store: Store, folder: Path, character: bytes) -> None:
    bad = lines.line_of(record(gemm(9, 9, 9), study="STUDY")).encode().replace(b"STUDY", character)
    told = taken(store, folder, written(record(gemm(9, 9, 9))) + bad)
    assert (told["records"], [reason["line"] for reason in told["reasons"]]) == (1, [3])


@given(st.binary(max_size=300))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_rubbish_is_refused(store: Store, folder: Path, data: bytes) -> None:
    before = listing.count(store)
    with contextlib.suppress(InputError):
        assert taken(store, folder, data)["records"] == 0
    assert listing.count(store) == before


def test_damaged_or_huge_data_is_refused(store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = zstandard.ZstdCompressor(write_checksum=True).compress(written(record(gemm(66, 66, 66), 1e-3)))
    bomb = zstandard.ZstdCompressor(level=19).compress(b"\n" * (64 << 20))
    assert len(bomb) < 64 << 10
    for body, why in (
        (packed[:-5], "ends early"), (packed[:20] + b"xxxxxx" + packed[26:], "damaged"),
        (b"\x1f\x8b\x08xxxx", "damaged"), (bomb, "bytes, and a line"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=why):
            taken(store, folder, body)
    monkeypatch.setattr(exchange, "LONGEST_LINE_BYTES", 1 << 20)
    with pytest.raises(InputError, match="bytes, and a line"):
        taken(store, folder, b"x" * (1 << 21))


def test_a_locked_database_stops_no_answer(filled: Server) -> None:
    before = filled.get("/v1/best", **ASKED)
    with contextlib.closing(sqlite3.connect(filled.folder / "studies.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        with ThreadPoolExecutor(1) as one:
            sent = one.submit(filled.post, "/v1/records", content=written(record(gemm(69, 69, 69), 1e-3)))
            for dims in ("512,512,512", "256,256,256", "777,77,7"):
                assert filled.get("/v1/best", **ASKED | {"dims": dims}).status_code == 200
            refused = sent.result()
        assert (refused.status_code, "keeps it locked" in refused.text) == (503, True)
        assert refused.headers["retry-after"]
    assert filled.get("/v1/best", **ASKED).headers["etag"] == before.headers["etag"]
    assert filled.post("/v1/records", content=written(record(gemm(69, 69, 69), 1e-3))).status_code == 200
