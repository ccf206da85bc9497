"""What strangers send: each is refused with a reason, and nothing of it is stored or makes the server fail."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard
from fixtures.fake_device import ROOT
from fixtures.server import BOARD, Server, fill, gemm, record, serving

from tuner.errors import DeviceTrouble, InputError
from tuner.results.measurement import Measurement, Outcome
from tuner.service import answers, records, tokens
from tuner.service.app import create_app
from tuner.service.records import take_file
from tuner.service.state import Service, Settings
from tuner.store import Store, lines, listing, watched

LONG = "9" * 5000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("refusals")
    db = f"sqlite:///{folder}/studies.db"
    fill(db)
    with serving(db, folder, "--no-jobs", "--local-admin") as running:
        yield running


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/v1/best", {"problem": "gemm ² 1 1"}),
        ("/v1/best", {"operation": "gemm", "dims": "1,1," + "9" * 190}),
        ("/v1/best", {"operation": "gemm", "dims": "1,1,²"}),
        ("/v1/best", {"problem": "gemm 1 1 1", "snapshot": LONG}),
        (f"/v1/snapshots/{LONG}", {}),
        ("/v1/records", {"shape": "1," + "9" * 190}),
        ("/v1/records", {"before": LONG}),
    ],
)
def test_numbers_that_are_none_are_refused(server: Server, path: str, query: dict[str, str]) -> None:
    told = server.get(path, **query)
    assert told.status_code == 422 or (path, told.status_code) == ("/v1/records", 200), told.text


def test_a_login_leads_to_no_address_that_is_none(server: Server) -> None:
    for target in ("//[", "http://[", "https://evil.example", "/\\evil.example"):
        told = server.get("/login", next=target)
        assert (told.status_code, 'name="next" value="/"' in told.text) == (200, True), told.text


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 5000, b'{"problems": ' + b"[" * 5000,
        f'{{"problems": ["gemm 1 1 1"], "snapshot": {LONG}}}'.encode(),
        b'{"problems": [{"problem": "gemm 1 1 1", "dims": ' + b"[" * 5000,
    ],
)  # fmt: skip
def test_bodies_that_nest_or_count_too_far_are_refused(server: Server, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    assert server.post("/v1/best", content=body, headers=headers).status_code in (400, 422)
    assert server.post("/v1/jobs", content=body, headers=headers).status_code in (400, 422)


@pytest.mark.parametrize(
    "deadline", ["9999-12-31T23:59:59-12:00", "9999-12-31T23:59:59", "0001-01-01T00:00:00+14:00"]
)
def test_a_deadline_beyond_the_calendar_is_refused(server: Server, deadline: str) -> None:
    job = {"problem": {"operation": "gemm", "dims": [8, 8, 8]}, "deadline": deadline}
    refused = server.post("/v1/jobs", json=job)
    assert (refused.status_code, "a deadline is in the future" in refused.text) == (422, True), refused.text


ROLLBACK = "[watch]\nrollback = 'automatic'\n[[problems]]\noperation='gemm'\nsquares=[8]"


@pytest.mark.parametrize("plan", ["a = " + "[" * 5000, "a = [\n" * 5000, ROLLBACK])
def test_a_plan_that_nests_too_far_or_rolls_back_is_refused(server: Server, plan: str) -> None:
    refused = server.post("/v1/jobs", json={"plan": plan})
    assert (refused.status_code, refused.json()["error"]["kind"]) == (422, "PlanError")


def test_one_bad_entry_of_a_batch_is_that_entrys_error(server: Server) -> None:
    entries = [{"problem": "gemm 8 8 8"}, {"operation": "gemm", "dims": [1, "x", 1]}, {"kind": 3}, "x" * 300]
    told = server.post("/v1/best", json={"problems": entries, "device": BOARD.name}).json()["answers"]
    assert [entry.get("refused", {}).get("kind") for entry in told] == [None, *["InputError"] * 3]
    assert "kind: Extra inputs are not permitted" in told[2]["refused"]["message"]


def test_an_export_that_cannot_be_is_not_to_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(*_: object) -> None:
        raise DeviceTrouble("there is no compiler here")

    monkeypatch.setattr(answers, "exported_files", lacking)
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path))
    db = f"sqlite:///{tmp_path}/studies.db"
    fill(db)
    query = {"operation": "gemm", "dims": "512,512,512", "device": BOARD.name, "format": "binary"}

    async def asked(transport: httpx.ASGITransport) -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get("/v1/export", params=query)

    with Service.open(Settings(db, "127.0.0.1", 0, jobs=False)) as service:
        told = asyncio.run(asked(httpx.ASGITransport(create_app(service))))
    assert (told.status_code, "retry-after" in told.headers) == (422, False)
    assert "cannot export it as binary: there is no compiler here" in told.json()["error"]["message"]


def test_questions_that_another_sites_page_makes_a_browser_ask_are_no_demand(server: Server) -> None:
    query = {"operation": "gemm", "dims": "811,813,815", "device": BOARD.name}
    with server.client() as client:
        for site in ("cross-site", "cross-site", "none"):
            assert client.get("/v1/best", params=query, headers={"sec-fetch-site": site}).status_code == 200
    until_s = time.monotonic() + 30
    while time.monotonic() < until_s:
        with Store.open(server.db, read_only=True) as store:
            counted = [wanted.calls for wanted in watched.demand(store) if wanted.problem.dims["m"] == 811]
        if counted:
            break
        time.sleep(0.2)
    assert counted == [1]


def test_the_description_tells_errors_and_security(server: Server) -> None:
    described = server.get("/openapi.json").json()
    assert described["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
    for path, methods in described["paths"].items():
        for route in methods.values():
            if path not in ("/healthz", "/readyz"):
                assert route["security"] == [{"HTTPBearer": []}], path
                assert {"401", "403", "422"} <= route["responses"].keys(), path


# --- records -------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path_factory.mktemp('intake')}/studies.db") as opened:
        yield opened


def sent(store: Store, folder: Path, *texts: str) -> dict[str, Any]:
    (folder / "sent").write_text("\n".join(texts), encoding="utf-8")
    return take_file(store, folder / "sent")


def with_samples(*samples_s: float) -> Any:
    return record(gemm(8, 8, 8), measurement=Measurement(Outcome.MEASURED, samples_s=samples_s))


GOOD = record(gemm(70, 70, 70), 1e-3)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (with_samples(float("nan")), "a sample is a time in seconds above 0, got nan"),
        (with_samples(float("inf")), "a sample is a time in seconds above 0, got inf"),
        (with_samples(1e-3, -1.0), "a sample is a time in seconds above 0, got -1.0"),
        (with_samples(0.0), "a sample is a time in seconds above 0, got 0.0"),
        (replace(GOOD, config={"BLOCK": [1, 2]}), "a config has numbers and texts, got [1, 2]"),
        (record(gemm(0, 8, 8)), "a dim is a whole number of 1 to 2147483647"),
        (record(gemm(10**30, 8, 8)), "a dim is a whole number of 1 to 2147483647"),
        (replace(GOOD, kernel="k" * 100_000), "a name has up to 200 characters, got 100000"),
        (replace(GOOD, study="s" * 200_000), "a text has up to 100000 characters"),
    ],
)
def test_records_that_cannot_be_true_are_refused_with_reason_and_line(
    store: Store, tmp_path: Path, bad: Any, why: str
) -> None:
    told = sent(store, tmp_path, lines.header(), lines.line_of(bad), lines.line_of(record(gemm(9, 9, 9))))
    assert (told["records"], told["refused"], told["reasons"][0]["line"]) == (1, 1, 2)
    assert why in told["reasons"][0]["reason"]


@pytest.mark.parametrize("character", ["\\u0000", "\\ud800"])
def test_a_text_that_databases_refuse_costs_its_line_and_no_other(
    store: Store, tmp_path: Path, character: str
) -> None:
    before = listing.count(store)
    texts = [lines.line_of(record(gemm(9, 9, 9), study="STUDY")) for _ in range(3)]
    told = sent(store, tmp_path, texts[0], texts[1].replace("STUDY", f"a{character}b"), texts[2])
    assert (told["records"], [reason["line"] for reason in told["reasons"]]) == (2, [2])
    assert listing.count(store) == before + 2


def test_a_small_body_unpacks_to_little(store: Store, tmp_path: Path) -> None:
    (tmp_path / "sent").write_bytes(zstandard.ZstdCompressor(level=19).compress(b"\n" * (256 << 20)))
    assert (tmp_path / "sent").stat().st_size < 64 << 10
    with pytest.raises(InputError, match="bytes, and a line"):
        take_file(store, tmp_path / "sent")


def test_what_nobody_waits_for_any_more_is_stored_no_further(store: Store, tmp_path: Path) -> None:
    (tmp_path / "sent").write_text("\n" * 5000)
    asked = iter([False, True])
    assert take_file(store, tmp_path / "sent", lambda: next(asked))["lines"] == records.BATCH


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that waits a second only."""
    folder = tmp_path_factory.mktemp("hasty")
    code = "from tuner.service import app; app.BODY_WITHIN_S = app.HEAD_WITHIN_S = 1.0"
    (folder / "sitecustomize.py").write_text(code)
    with serving(
        f"sqlite:///{folder}/studies.db", folder, "--no-jobs", "--local-admin", PYTHONPATH=f"{folder}:{ROOT}"
    ) as running:
        yield running


def test_silent_and_slow_connections_are_closed_while_others_send(hasty: Server) -> None:
    def reply_to(*pieces: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", hasty.port), timeout=30) as raw:
            for piece in pieces:
                raw.sendall(piece)
                time.sleep(0.3)
            return raw.recv(100)

    slow = b"POST /v1/records HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n"
    assert reply_to() == b""
    assert reply_to(b"GET / HTTP/1.1\r\nHo") == b""
    replies: list[bytes] = []
    sender = threading.Thread(target=lambda: replies.append(reply_to(slow, b"x", b"x")))
    sender.start()
    body = f"{lines.header()}\n{lines.line_of(GOOD)}\n".encode()
    assert hasty.post("/v1/records", content=body).json()["records"] == 1
    sender.join()
    assert replies[0].startswith(b"HTTP/1.1 408")


def test_the_count_of_wrong_tokens_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    throttle = tokens.Throttle()
    for _ in range(6):
        throttle.failed("10.0.0.1")
    assert throttle.wait_s("10.0.0.1") > 0
    now_s = time.monotonic()
    monkeypatch.setattr(tokens.time, "monotonic", lambda: now_s + tokens.FORGOTTEN_S + 1)
    assert (throttle.wait_s("10.0.0.1"), throttle.failed("10.0.0.1")) == (0, 1)
