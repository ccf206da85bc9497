"""Who may do what: tokens, scopes, hosts, origins, bounds; and the client. With tokens."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fixtures.fake_device import ROOT
from fixtures.server import ASKED, BOARD, TUNED, Server, eventually, fill, gemm, record, serving

import tuner
from tuner.cli.main import run
from tuner.errors import InputError, NothingFound
from tuner.service import tokens
from tuner.service.client import ServerAway
from tuner.store import Store, lines

#: A server and its tokens.
Guarded = tuple[Server, dict[str, str]]


def test_without_a_token_nothing_is_told(guarded: Guarded) -> None:
    server, secrets = guarded
    with server.client(secrets["reader"]) as client:
        described = client.get("/openapi.json").json()
    assert described["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
    for path, methods in described["paths"].items():
        is_open = path in ("/healthz", "/readyz")
        for method, route in methods.items():
            refused = httpx.request(method.upper(), f"{server.base}{path.replace('{', '').replace('}', '')}")
            assert refused.status_code == (200 if is_open else 401), path
            assert is_open or route["security"] == [{"HTTPBearer": []}], path
            assert is_open or {"401", "403", "422"} <= route["responses"].keys(), path


def test_a_token_allows_its_scopes_and_no_more(guarded: Guarded) -> None:
    server, secrets = guarded
    with server.client(secrets["reader"]) as client:
        assert client.get("/v1/best", params=ASKED).status_code == 200
        for path in ("/v1/jobs", "/v1/records"):
            refused = client.post(path, json={})
            assert refused.status_code == 403
            assert "which reader does not have" in refused.json()["error"]["message"]
    with server.client(secrets["sender"]) as client:
        assert client.post("/v1/records", content=b"").status_code == 200
        assert client.post("/v1/jobs", json={}).status_code == 403


def test_who_may_only_submit_sees_jobs_of_its_own(guarded: Guarded) -> None:
    server, secrets = guarded
    job = {"problem": {"operation": "gemm", "dims": [8, 8, 8]}, "device": "cpu", "trials": 5}
    with server.client(secrets["own"]) as mine, server.client(secrets["other"]) as theirs:
        name = mine.post("/v1/jobs", json=job).json()["id"]
        raised = theirs.post("/v1/jobs", json=job | {"priority": 7})
        assert (raised.status_code, raised.json()["id"], raised.json()["priority"]) == (200, name, 7)
        assert mine.get("/v1/best", params=ASKED).status_code == 403
        assert mine.get(f"/v1/jobs/{name}").status_code == 200
        assert theirs.get(f"/v1/jobs/{name}").status_code == 404
        assert [len(client.get("/v1/jobs").json()["jobs"]) for client in (mine, theirs)] == [1, 0]
        assert mine.post(f"/v1/jobs/{name}/cancel").json()["state"] == "cancelled"


def test_tokens_are_made_listed_and_revoked(guarded: Guarded, capsys: pytest.CaptureFixture[str]) -> None:
    server, _ = guarded
    assert run(["token", "create", "short", "--scope", "read", "--days", "1", "--db", server.db]) == 0
    secret = capsys.readouterr().out.strip()
    with Store.open(server.db) as store:
        brief = tokens.create(store, "brief", ["read"], 2 / 86400)
    stored = b"".join(path.read_bytes() for path in server.folder.glob("studies.db*"))
    assert secret.encode() not in stored
    eventually(lambda: server.status(secret) == 200)
    assert run(["token", "create", "short", "--db", server.db]) == 2
    assert "a token has a name of its own" in capsys.readouterr().err
    assert run(["token", "create", "wide", "--scope", "all", "--db", server.db]) == 2
    assert run(["token", "revoke", "short", "--db", server.db]) == 0
    eventually(lambda: server.status(secret) in (401, 429))
    eventually(lambda: server.status(brief) in (401, 429))
    assert run(["token", "revoke", "nobody", "--db", server.db]) == 1
    capsys.readouterr()
    assert run(["token", "list", "--json", "--db", server.db]) == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert (listed["short"]["state"], listed["brief"]["state"]) == ("revoked", "expired")
    assert listed["keeper"]["scopes"] == ["admin"]
    assert secret not in server.log.read_text()
    assert run(["token", "list", "--db", server.db]) == 0


def test_wrong_tokens_are_slowed_down_and_logged(guarded: Guarded) -> None:
    server, secrets = guarded
    codes = [server.status(f"tuner_{number}", "/v1/best") for number in range(8)]
    assert 429 in codes[5:]
    assert server.status(secrets["reader"]) == 200  # a stale token beside it locks nobody out
    again = httpx.get(f"{server.base}/v1/operations", headers={"authorization": "Basic eDp5"})
    assert (again.status_code, int(again.headers["retry-after"]) >= 1) == (429, True)
    assert '"refused": "a wrong token", "client": "127.0.0.1", "failures": 5' in server.log.read_text()


def test_the_count_of_wrong_tokens_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    throttle = tokens.Throttle()
    assert [throttle.failed("10.0.0.1") for _ in range(6)] == [1, 2, 3, 4, 5, 6]
    assert throttle.wait_s("10.0.0.1") > 0
    now_s = time.monotonic()
    monkeypatch.setattr(tokens.time, "monotonic", lambda: now_s + tokens.FORGOTTEN_S + 1)
    assert (throttle.wait_s("10.0.0.1"), throttle.failed("10.0.0.1")) == (0, 1)


def test_strangers_pages_reach_nothing(guarded: Guarded) -> None:
    server, secrets = guarded
    with server.client(secrets["reader"]) as client:
        assert client.get("/v1/best", headers={"host": "evil.example"}).status_code == 421
        for headers in (
            {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "http://["},
            {"sec-fetch-site": "cross-site"},
        ):  # fmt: skip
            assert client.post("/v1/best", json={}, headers=headers).status_code == 403
        assert client.post("/v1/best", json={}, headers={"origin": server.base}).status_code == 422
        assert "access-control-allow-origin" not in client.get("/v1/operations").headers
        assert [client.request(f"ODD{number}", "/healthz").status_code for number in range(3)] == [405] * 3
        assert "ODD" not in client.get("/metrics").text, "unknown methods are counted as one"


def test_bodies_are_bounded(guarded: Guarded) -> None:
    server, secrets = guarded
    with server.client(secrets["reader"]) as client:
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
    "body", [b"[" * 5000, b'{"problems": ["gemm 1 1 1"], "snapshot": ' + b"9" * 5000 + b"}"]
)
def test_bodies_that_nest_or_count_too_far_are_refused(filled: Server, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    assert filled.post("/v1/best", content=body, headers=headers).status_code in (400, 422)
    assert filled.post("/v1/jobs", content=body, headers=headers).status_code in (400, 422)


def test_silent_and_slow_connections_are_closed_while_others_send(tmp_path: Path) -> None:
    """...by a server that waits a second only."""
    code = "from tuner.service import app; app.BODY_WITHIN_S = app.HEAD_WITHIN_S = 1.0; "
    code += "app.MOST_AT_ONCE, app.MOST_SILENT = 20, 10"
    (tmp_path / "sitecustomize.py").write_text(code)
    db, options = f"sqlite:///{tmp_path}/studies.db", ("--no-jobs", "--local-admin")
    slow = b"POST /v1/records HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n"
    body = f"{lines.header()}\n{lines.line_of(record(gemm(70, 70, 70), 1e-3))}\n".encode()
    replies: list[bytes] = []
    with serving(db, tmp_path, *options, PYTHONPATH=f"{tmp_path}:{ROOT}") as hasty:

        def send(*pieces: bytes) -> None:
            with socket.create_connection(("127.0.0.1", hasty.port), timeout=30) as raw:
                for piece in pieces:
                    raw.sendall(piece)
                    time.sleep(0.3)
                replies.append(raw.recv(100))

        with contextlib.ExitStack() as silent:
            for _ in range(30):
                silent.enter_context(socket.create_connection(("127.0.0.1", hasty.port)))
            assert hasty.get("/healthz").status_code == 200, "silent ones leave room for others"
        send()
        send(b"GET / HTTP/1.1\r\nHo")
        sender = threading.Thread(target=send, args=(slow, b"x", b"x"))
        sender.start()
        assert hasty.post("/v1/records", content=body).json()["records"] == 1
        sender.join()
    assert replies[:2] == [b"", b""]
    assert replies[2].startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(("options", "message"), [
    (("--host", "0.0.0.0"), "without tokens only this machine is served"),
    (("--local-admin", "--host", "0.0.0.0"), "without tokens only this machine is served"),
    (("--root-path", "tuner/"), "--root-path is a path such as /tuner"),
    (("--device", "cuda:99"), "cuda:99"),
    (("--db", "nonsense"), "a database is named by a URL"),
    (("--cluster", "moon"), "a cluster is local, tcp://HOST:8786"),
])  # fmt: skip
def test_a_server_that_would_let_strangers_in_does_not_start(
    here: Path, options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", "--port", "0", *options]) in (2, 3)
    assert message in capsys.readouterr().err


def test_local_admin_goes_without_tokens(guarded: Guarded, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--port", "0", "--local-admin", "--db", guarded[0].db]) == 2
    assert "--local-admin lets everyone" in capsys.readouterr().err


# --- the client ----------------------------------------


def test_a_program_asks_by_a_typed_client(guarded: Guarded, tmp_path: Path) -> None:
    server, secrets = guarded
    client = tuner.connect(server.base, secrets["sender"], cache=tmp_path)
    answer = client.best("gemm 512 512 512", "NVIDIA H200")
    with server.client(secrets["sender"]) as plain:
        assert dict(answer.told) == plain.get("/v1/best", params=ASKED).json()
    assert (answer.kernel, answer.match, answer.from_cache) == ("naive", "exact", False)
    assert client.best(TUNED[1], "NVIDIA H200", snapshot=answer.snapshot).told == answer.told
    assert client.best("gemm 512 512 512", "NVIDIA H200").told == answer.told  # not modified
    many = client.best_of_many(["gemm 256 256 256", "gem 1"], "NVIDIA H200")
    assert many[0].kernel == "naive"
    assert isinstance(many[1], InputError)
    paths = client.export(TUNED[1], "NVIDIA H200", form="json", folder=tmp_path / "out")
    assert json.loads(paths[0].read_text())["record_id"] == answer.told["record_id"]
    (both,) = [path for path in client.export(TUNED[1], "NVIDIA H200", folder=tmp_path) if path.suffix == ".cu"]
    assert "__global__" in both.read_text()
    with pytest.raises(NothingFound, match="a snapshot has a number"):
        client.best("gemm 512 512 512", "NVIDIA H200", snapshot=10**6)
    with pytest.raises(InputError, match="which sender does not have"):
        client.submit({"problem": {"operation": "gemm", "dims": [1, 1, 1]}})
    with pytest.raises(InputError, match="a server has an address such as"):
        tuner.connect("node:8421")
    file = tmp_path / "some.jsonl"
    file.write_text(f"{lines.header()}\n{lines.line_of(record(gemm(68, 68, 68), 1e-3))}\n")
    assert client.send_records(file)["records"] == 1
    assert client.get("/v1/champions", limit=1)["count"] > 3, "published ones are there, too"


def test_the_last_answers_are_repeated_while_the_server_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    db = f"sqlite:///{tmp_path}/studies.db"
    fill(db)
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path / "cache"))
    command = ["best", "gemm", "512", "512", "512", "--device", BOARD.name]
    with serving(db, tmp_path, "--no-jobs") as own:
        client = tuner.connect(own.base)
        assert client.keep(BOARD.name) > 3
        monkeypatch.setenv("TUNER_SERVER", own.base)
        assert run([*command, "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert (printed["match"], printed["from_cache"]) == ("exact", False)
    away = client.best(TUNED[0], BOARD.name)
    assert (away.kernel, away.from_cache) == ("naive", True)
    assert "does not answer" in caplog.text
    assert run([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["from_cache"] is True
    with pytest.raises(ServerAway, match="does not answer"):
        client.best("gemm 9 9 9", BOARD.name)
    assert run(["best", "gemm", "9", "9", "9", "--device", BOARD.name]) == 3
