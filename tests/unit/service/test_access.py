"""Who may do what: tokens, scopes, hosts, origins, bounds; records from elsewhere; the client. With tokens."""

import contextlib
import json
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import zstandard
from fixtures.fake_device import ROOT
from fixtures.server import BOARD, TUNED, Server, eventually, fill, gemm, record, serving

import tuner
from tuner.cli.main import run
from tuner.errors import InputError, NothingFound
from tuner.results.record import Record
from tuner.service.client import ServerAway
from tuner.store import Store, lines, listing

ASKED = {"operation": "gemm", "dims": "512,512,512", "device": "NVIDIA H200"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("access")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    db = f"sqlite:///{folder}/studies.db"
    fill(db)
    make(db, "keeper", "admin")
    with serving(db, folder, "--no-jobs") as running:
        yield running


def make(db: str, name: str, scopes: str, days: float = 9.0) -> str:
    """A token, as the operator makes it."""
    from tuner.service import tokens

    with Store.open(db) as store:
        return tokens.create(store, name, scopes.split(","), days)


@pytest.fixture(scope="module")
def reader(server: Server) -> str:
    secret = make(server.db, "reader", "read")
    eventually(lambda: server.status(secret) == 200)
    return secret


@pytest.fixture(scope="module")
def sender(server: Server) -> str:
    secret = make(server.db, "sender", "read,records")
    eventually(lambda: server.status(secret) == 200)
    return secret


def test_without_a_token_nothing_is_told(server: Server, reader: str) -> None:
    with server.client(reader) as client:
        described = client.get("/openapi.json").json()
    for path, methods in described["paths"].items():
        for method in methods:
            found = httpx.request(method.upper(), f"{server.base}{path.replace('{', '').replace('}', '')}")
            assert found.status_code == (200 if path in ("/healthz", "/readyz") else 401), path
    assert server.get("/openapi.json").status_code == 401


def test_a_token_allows_its_scopes_and_no_more(server: Server, reader: str, sender: str) -> None:
    with server.client(reader) as client:
        assert client.get("/v1/best", params=ASKED).status_code == 200
        for path in ("/v1/jobs", "/v1/records"):
            refused = client.post(path, json={})
            assert refused.status_code == 403
            assert "which reader does not have" in refused.json()["error"]["message"]
    with server.client(sender) as client:
        assert client.post("/v1/records", content=b"").status_code == 200
        assert client.post("/v1/jobs", json={}).status_code == 403


def test_who_may_only_submit_sees_jobs_of_its_own(server: Server) -> None:
    own, other = (make(server.db, name, "submit") for name in ("own", "other"))
    eventually(lambda: server.status(other, "/v1/jobs") == 200)
    job = {"problem": {"operation": "gemm", "dims": [8, 8, 8]}, "device": "cpu", "trials": 5}
    with server.client(own) as mine, server.client(other) as theirs:
        name = mine.post("/v1/jobs", json=job).json()["id"]
        raised = theirs.post("/v1/jobs", json=job | {"priority": 7})
        assert (raised.status_code, raised.json()["id"], raised.json()["priority"]) == (200, name, 7)
        assert [mine.get("/v1/best", params=ASKED).status_code, mine.get(f"/v1/jobs/{name}").status_code] == [
            403,
            200,
        ]
        assert theirs.get(f"/v1/jobs/{name}").status_code == 404
        assert [len(client.get("/v1/jobs").json()["jobs"]) for client in (mine, theirs)] == [1, 0]
        assert mine.post(f"/v1/jobs/{name}/cancel").json()["state"] == "cancelled"


def test_tokens_are_made_listed_and_revoked(
    server: Server, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    assert run(["token", "create", "short", "--scope", "read", "--days", "1", "--db", server.db]) == 0
    secret = capsys.readouterr().out.strip()
    assert secret.startswith("tuner_")
    stored = b"".join(path.read_bytes() for path in folder.glob("studies.db*"))
    assert secret.encode() not in stored
    eventually(lambda: server.status(secret) == 200)
    assert run(["token", "create", "short", "--db", server.db]) == 2
    assert "a token has a name of its own" in capsys.readouterr().err
    assert run(["token", "create", "wide", "--scope", "all", "--db", server.db]) == 2
    assert run(["token", "revoke", "short", "--db", server.db]) == 0
    eventually(lambda: server.status(secret) == 401)
    assert run(["token", "revoke", "nobody", "--db", server.db]) == 1
    capsys.readouterr()
    assert run(["token", "list", "--json", "--db", server.db]) == 0
    told = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert (told["short"]["state"], told["keeper"]["scopes"]) == ("revoked", ["admin"])
    assert secret not in server.log.read_text()
    assert run(["token", "list", "--db", server.db]) == 0


def test_a_token_expires(server: Server) -> None:
    secret = make(server.db, "brief", "read", days=2 / 86400)
    eventually(lambda: server.status(secret) == 401, 20)


def test_wrong_tokens_are_slowed_down_and_logged(tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path}/studies.db"
    secret = make(db, "one", "read")
    with serving(db, tmp_path, "--no-jobs") as own:
        codes = [own.status(f"tuner_{number}", "/v1/best") for number in range(8)]
        assert codes[:5] == [401] * 5
        assert 429 in codes[5:]
        assert own.status(secret) == 200  # a stale token beside it locks nobody out
        again = httpx.get(f"{own.base}/v1/operations", headers={"authorization": "Basic eDp5"})
        assert (again.status_code, int(again.headers["retry-after"]) >= 1) == (429, True)
        assert '"refused": "a wrong token", "client": "127.0.0.1", "failures": 5' in own.log.read_text()


def test_unknown_methods_are_refused_and_counted_as_one(server: Server, reader: str) -> None:
    with server.client(reader) as client:
        assert [client.request(f"ODD{number}", "/healthz").status_code for number in range(3)] == [405] * 3
        assert "ODD" not in client.get("/metrics").text


def test_strangers_pages_reach_nothing(server: Server, reader: str) -> None:
    with server.client(reader) as client:
        assert client.get("/v1/best", headers={"host": "evil.example"}).status_code == 421
        for headers in (
            {"origin": "http://evil.example"},
            {"origin": "null"},
            {"origin": "http://["},
            {"sec-fetch-site": "cross-site"},
        ):
            assert client.post("/v1/best", json={}, headers=headers).status_code == 403
        assert client.post("/v1/best", json={}, headers={"origin": server.base}).status_code == 422
        assert "access-control-allow-origin" not in client.get("/v1/operations").headers


def test_bodies_are_bounded(server: Server, reader: str) -> None:
    with server.client(reader) as client:
        large = b'{"problems": ["' + b"x" * (3 << 20) + b'"]}'
        assert client.post("/v1/best", content=large).status_code == 413

        def pieces() -> Iterator[bytes]:
            for _ in range(40):
                yield b"x" * 65536

        # The server may close the connection while more is being sent.
        with contextlib.suppress(httpx.TransportError):
            assert client.post("/v1/best", content=pieces()).status_code == 413
        assert client.get("/v1/records", params={"limit": 100000}).status_code == 422
        assert client.get("/v1/best?dims=" + "1," * 30000).status_code in (400, 414, 422)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--host", "0.0.0.0"), "without tokens only this machine is served"),
        (("--local-admin", "--host", "0.0.0.0"), "without tokens only this machine is served"),
        (("--root-path", "tuner/"), "--root-path is a path such as /tuner"),
        (("--device", "cuda:99"), "cuda:99"),
        (("--db", "nonsense"), "a database is named by a URL"),
    ],
)
def test_a_server_that_would_let_strangers_in_does_not_start(
    tmp_path: Path, options: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert run(["serve", "--port", "0", *options]) in (2, 3)
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


def test_local_admin_is_not_for_a_server_with_tokens(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", "--port", "0", "--local-admin", "--db", server.db]) == 2
    assert "--local-admin lets everyone" in capsys.readouterr().err


# --- records from elsewhere ----------------------------


def written(*told: object) -> bytes:
    return "".join(f"{line}\n" for line in (lines.header(), *map(lines.line_of, told))).encode()  # type: ignore[arg-type]


@pytest.mark.parametrize("packed", [False, True])
def test_records_are_taken_once(server: Server, sender: str, packed: bool) -> None:
    told = [record(gemm(64, 64, 10 + n + 1000 * packed), 1e-3) for n in range(1200)]
    body = written(*told)
    body = zstandard.ZstdCompressor().compress(body) if packed else body
    with server.client(sender) as client:
        first = client.post("/v1/records", content=body).json()
        again = client.post("/v1/records", content=body).json()
    assert (first["records"], first["known"], first["refused"], first["lines"]) == (1200, 0, 0, 1201)
    assert (again["records"], again["known"]) == (0, 1200)


def test_lines_that_are_no_records_are_refused_with_reasons(server: Server, sender: str) -> None:
    good = record(gemm(65, 65, 65), 1e-3)
    body = written(good) + b'{"record": {}}\nnonsense\n\xff\xfe\n{"tile_tuner": "records", "format": 99}\n'
    with server.client(sender) as client:
        told = client.post("/v1/records", content=body).json()
    assert (told["records"], told["refused"]) == (1, 4)
    assert [each["line"] for each in told["reasons"]] == [3, 4, 5, 6]
    assert "it lacks" in told["reasons"][0]["reason"]
    with Store.open(server.db, read_only=True) as store:
        assert store.record(good.id) is not None


def test_a_stream_that_is_damaged_is_told_so(server: Server, sender: str) -> None:
    packed = zstandard.ZstdCompressor(write_checksum=True).compress(written(record(gemm(66, 66, 66), 1e-3)))
    with server.client(sender) as client:
        for body, said in (
            (packed[:-5], "ends early"), (packed[:20] + b"xxxxxx" + packed[26:], "damaged"),
            (b"\x1f\x8b\x08xxxx", "damaged"),
        ):  # fmt: skip
            refused = client.post("/v1/records", content=body)
            assert (refused.status_code, said in refused.text) == (422, True), refused.text


def test_a_sender_that_is_killed_can_send_again(server: Server, sender: str) -> None:
    told = [record(gemm(67, 67, 1 + n), 1e-3) for n in range(1500)]
    body = written(*told)
    head = f"POST /v1/records HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {sender}\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[: len(body) * 3 // 4])
        time.sleep(0.3)
    with server.client(sender) as client:
        assert client.get("/v1/operations").status_code == 200
        again = client.post("/v1/records", content=body).json()
    assert again["records"] + again["known"] == 1500
    with Store.open(server.db, read_only=True) as store:
        wanted = listing.Selection(operation="gemm")
        found = [each for each in listing.stream(store, Record, wanted) if each.problem.dims["m"] == 67]
    assert len(found) == 1500


def test_a_locked_database_stops_no_answer(tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path}/studies.db"
    fill(db)
    with serving(db, tmp_path, "--no-jobs", "--local-admin") as own:
        before = own.get("/v1/best", **ASKED)
        with contextlib.closing(sqlite3.connect(tmp_path / "studies.db")) as other:
            other.execute("BEGIN IMMEDIATE")
            with ThreadPoolExecutor(1) as one:
                sent = one.submit(own.post, "/v1/records", content=written(record(gemm(69, 69, 69), 1e-3)))
                for dims in ("512,512,512", "256,256,256", "777,77,7"):
                    assert own.get("/v1/best", **ASKED | {"dims": dims}).status_code == 200
                refused = sent.result()
            assert (refused.status_code, "keeps it locked" in refused.text) == (503, True)
            assert refused.headers["retry-after"]
        assert own.get("/v1/best", **ASKED).content == before.content
        assert own.post("/v1/records", content=written(record(gemm(69, 69, 69), 1e-3))).status_code == 200


# --- the client ----------------------------------------


def test_a_program_asks_by_a_typed_client(
    server: Server, sender: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = tuner.connect(server.base, sender, cache=tmp_path)
    found = client.best("gemm 512 512 512", "NVIDIA H200")
    with server.client(sender) as plain:
        local = plain.get("/v1/best", params=ASKED).json()
    assert dict(found.told) == local
    assert (found.kernel, found.match, found.from_cache) == ("naive", "exact", False)
    assert found.age_days is not None
    assert client.best(TUNED[1], "NVIDIA H200", snapshot=found.snapshot).told == found.told
    assert client.best("gemm 512 512 512", "NVIDIA H200").told == found.told  # not modified
    many = client.best_of_many(["gemm 256 256 256", "gem 1"], "NVIDIA H200")
    assert many[0].kernel == "naive"
    assert isinstance(many[1], InputError)
    paths = client.export(TUNED[1], "NVIDIA H200", form="json", folder=tmp_path / "out")
    assert json.loads(paths[0].read_text())["record_id"] == found.told["record_id"]
    with pytest.raises(NothingFound, match="a snapshot has a number"):
        client.best("gemm 512 512 512", "NVIDIA H200", snapshot=10**6)
    with pytest.raises(InputError, match="which sender does not have"):
        client.submit({"problem": {"operation": "gemm", "dims": [1, 1, 1]}})
    with pytest.raises(InputError, match="a server has an address such as"):
        tuner.connect("node:8421")
    file = tmp_path / "some.jsonl"
    file.write_bytes(written(record(gemm(68, 68, 68), 1e-3)))
    assert client.send_records(file)["records"] == 1
    assert client.get("/v1/champions", limit=1)["count"] == 3


def test_the_last_snapshot_answers_while_the_server_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    db = f"sqlite:///{tmp_path}/studies.db"
    fill(db)
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path / "cache"))
    with serving(db, tmp_path, "--no-jobs") as own:
        client = tuner.connect(own.base)
        assert client.keep(BOARD.name) == 3
        monkeypatch.setenv("TUNER_SERVER", own.base)
        command = ["best", "gemm", "512", "512", "512", "--device", BOARD.name]
        assert run([*command, "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert (printed["match"], printed["from_cache"]) == ("exact", False)
    away = client.best(TUNED[0], BOARD.name)
    assert (away.kernel, away.from_cache) == ("naive", True)
    assert "does not answer" in caplog.text
    assert "answering from snapshot" in caplog.text
    assert run([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["from_cache"] is True
    with pytest.raises(ServerAway, match="does not answer"):
        client.best("gemm 9 9 9", BOARD.name)
    assert run(["best", "gemm", "9", "9", "9", "--device", BOARD.name]) == 3


def test_importing_the_client_loads_no_library_of_the_server() -> None:
    code = (
        "import sys, tuner; tuner.connect('http://127.0.0.1:1'); "
        "print(*{name.split('.')[0] for name in sys.modules} & {'fastapi', 'uvicorn', 'sqlalchemy', 'httpx', "
        "'numpy', 'optuna'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == ""
