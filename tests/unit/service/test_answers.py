"""Answers over HTTP: the command line's JSON, from snapshots that never change. On both databases."""

import base64
import functools
import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fixtures.lookup_records import crown, tiled
from fixtures.postgres import Databases
from fixtures.server import ASKED, BOARD, CPU, TUNED, Server, eventually, fill, gemm, library, record, serving

from tuner.cli.main import run
from tuner.model.stored import from_bytes, to_bytes
from tuner.results.record import Retraction, Role, rows_study, utc_now
from tuner.store import Store, watched
from tuner.store.published import tuned_folder


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if request.param == "sqlite":
        yield request.getfixturevalue("filled")
        return
    db = Databases(request.getfixturevalue("postgresql")).fresh()
    fill(db)
    with serving(db, tmp_path_factory.mktemp("served"), "--no-jobs", "--local-admin") as running:
        yield running


def command_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert run(list(arguments)) == 0
    return json.loads(capsys.readouterr().out)


def test_an_answer_is_that_of_the_command_line(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    for dims in ("512 512 512", "640 640 640", "4096 4096 4096", "777 333 111"):
        words = f"gemm {dims} --device h200 --db {server.db} --json".split()
        printed = command_json(capsys, "best", *words)
        told = server.get("/v1/best", **ASKED | {"dims": dims.replace(" ", ","), "device": "h200"}).json()
        assert printed.pop("age_days", None) is None or told["measured_at"]
        # Kernels of other tiers are compared with the driver of this machine's own devices only there.
        assert {name: told[name] for name in printed} == printed
        assert told.keys() - printed.keys() == {"snapshot"}


@pytest.mark.parametrize("asked", [
    {"problem": "gemm 512 512 512 nn"}, {"operation": "gemm", "dims": "m=512,n=512,k=512"},
    {"operation": "gemm", "dims": "512x512x512", "layout": "nn", "precision": "ieee"},
])  # fmt: skip
def test_a_problem_can_be_told_in_several_ways(filled: Server, asked: dict[str, str]) -> None:
    answer = filled.get("/v1/best", **asked, device="NVIDIA H200").json()
    assert answer == filled.get("/v1/best", **ASKED).json()


@pytest.mark.parametrize(("asked", "status", "message"), [
    ({"operation": "gem", "dims": "1"}, 422, "did you mean"),
    ({}, 422, "got no operation"),
    ({"operation": "gemm", "dims": "1,2"}, 422, "gemm takes M N K: 3 dims, got 2"),
    ({"operation": "gemm", "dims": "1,1,\u00b2"}, 422, "a dim is a whole number"),
    ({"operation": "gemm", "dims": "1,2,99999999999999999999"}, 422, "a dim is a whole number"),
    ({"operation": "gemm", "dims": "1,1," + "9" * 190}, 422, ""),
    (ASKED | {"device": "fake:/etc/passwd"}, 422, "unknown device"),
    (ASKED | {"regime": "warm"}, 422, "query.regime: Input should be"),
    (ASKED | {"shape": "1"}, 422, "query.shape: Extra inputs are not permitted"),
    (ASKED | {"problem": "gemm 1 1 1"}, 422, "keep one"),
    ({"problem": "gemm \u00b2 1 1"}, 422, "gemm takes M N K: 3 dims, got 2"),
    (ASKED | {"snapshot": "9" * 5000}, 422, "query.snapshot"),
    (ASKED | {"snapshot": "99999"}, 404, "a snapshot has a number of this database"),
    (ASKED | {"kernel": "x" * 201}, 422, "query.kernel: String should have at most 200 characters"),
])  # fmt: skip
def test_wrong_questions_are_refused(filled: Server, asked: dict[str, str], status: int, message: str) -> None:
    refused = filled.get("/v1/best", **asked)
    assert (refused.status_code, refused.headers["content-type"]) == (status, "application/json")
    assert message in refused.json()["error"]["message"]


def test_many_problems_are_answered_from_one_snapshot(filled: Server) -> None:
    problems = [
        "gemm 512 512 512", {"operation": "gemm", "dims": [256, 256, 256]}, "gem 1 2", "gemm 9 9 9",
        {"operation": "gemm", "dims": [1, "x", 1]}, {"kind": 3}, "x" * 300,
    ]  # fmt: skip
    body = {"problems": problems, "device": "NVIDIA H200"}
    told = filled.post("/v1/best", json=body).json()
    assert told["answers"][0] == filled.get("/v1/best", **ASKED).json()
    assert told["answers"][1]["shape"] == {"m": 256, "n": 256, "k": 256}
    kinds = [answer.get("refused", {}).get("kind") for answer in told["answers"]]
    assert kinds == [None, None, "UnknownName", None, "InputError", "InputError", "InputError"]
    assert {answer["snapshot"] for answer in told["answers"] if "snapshot" in answer} == {told["snapshot"]}
    most = filled.post("/v1/best", json={"problems": ["gemm 512 512 512"] * 1000, "device": "h200"})
    assert len(most.json()["answers"]) == 1000
    for wrong in ({"problems": ["gemm 1 1 1"] * 1001}, body | {"snapshot": 2**70}):
        assert filled.post("/v1/best", json=wrong).status_code == 422


def test_an_unchanged_answer_is_not_sent_again(filled: Server) -> None:
    first = filled.get("/v1/best", **ASKED)
    with filled.client() as client:
        again = client.get("/v1/best", params=ASKED, headers={"if-none-match": first.headers["etag"]})
        other = client.get("/v1/best", params=ASKED, headers={"if-none-match": '"no"'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"] == other.headers["etag"]
    assert other.content == first.content
    assert "age_days" not in first.json()
    with Store.open(filled.db) as store:
        store.add(record(gemm(640, 640, 640), 5e-3))
    next_after(filled, first.json()["snapshot"])
    with filled.client() as client:
        later = client.get("/v1/best", params=ASKED, headers={"if-none-match": first.headers["etag"]})
    assert later.status_code == 304, "what was measured elsewhere changes no tag"


def next_after(server: Server, number: int) -> dict:
    """The answer of the snapshot after one, which comes within seconds."""
    answer = lambda: server.get("/v1/best", **ASKED).json()
    return eventually(lambda: (told := answer())["snapshot"] > number and told, 30)


def test_a_snapshot_repeats_its_answers_and_marks_what_was_retracted(server: Server) -> None:
    before = server.get("/v1/best", **ASKED)
    number = before.json()["snapshot"]
    assert before.headers["x-tuner-snapshot"] == str(number)
    with Store.open(server.db) as store:
        better = record(TUNED[1], 1e-4, role=Role.FINAL)
        better = replace(better, measurement=replace(better.measurement, bits="0123456789ab"))
        champion = crown(store, better, library(TUNED[1], 2e-4), 2.0)
    now = next_after(server, number)
    assert (now["record_id"], now["speedup"]) == (better.id, 2.0)
    assert (before.json()["bits"], now["bits"]) == ("", "0123456789ab"), "a snapshot names the class of bits"
    assert server.get("/v1/best", **ASKED, snapshot=number).content == before.content
    with Store.open(server.db) as store:
        store.add(Retraction(champion.id, "measured on a hot board"))
    last = next_after(server, now["snapshot"])
    assert last["record_id"] == before.json()["record_id"]
    marked = server.get("/v1/best", **ASKED, snapshot=now["snapshot"]).json()
    mark = marked.pop("retracted")
    assert marked == now
    assert (mark["id"], mark["reason"]) == (champion.id, "measured on a hot board")
    assert server.get("/v1/best", **ASKED, snapshot=number).content == before.content
    history = server.get("/v1/champions/history", **ASKED).json()["history"]
    assert [round(each["speedup"], 3) for each in history][-2:] == [0.917, 1.1]
    then = server.get("/v1/champions/history", **ASKED, snapshot=now["snapshot"]).json()["history"]
    assert (then[-1]["id"], then[-1]["bits"]) == (champion.id, "0123456789ab")


def test_a_snapshot_keeps_the_model_that_it_was_taken_with(server: Server) -> None:
    asked = ASKED | {"dims": "901,903,905"}
    before = server.get("/v1/best", **asked)
    number = before.json()["snapshot"]
    path = next(tuned_folder().glob("nvidia-h200/models/gemm.json"))
    published = from_bytes(path.read_bytes())
    fitted = dict(published.provenance) | {"fitted_at": utc_now(), "timings": 12345}
    with Store.open(server.db) as store:
        watched.add_model(store, "gemm", BOARD.name, "cold", to_bytes(replace(published, provenance=fitted)))
    eventually(lambda: server.get("/v1/best", **asked).json()["snapshot"] > number, 30)
    middle = server.get("/v1/best", **asked)
    assert "predicted from 12345 timings" in middle.json()["reasons"][0]
    assert "12345" not in before.json()["reasons"][0]
    with Store.open(server.db) as store:
        watched.add_model(store, "gemm", BOARD.name, "cold", b"no model")
    later = middle.json()["snapshot"]
    eventually(lambda: server.get("/v1/best", **asked).json()["snapshot"] > later, 30)
    last = server.get("/v1/best", **asked)
    assert last.json()["reasons"] == before.json()["reasons"], "one that is damaged is left out"
    unchanged = server.get("/v1/best", **asked).json()["snapshot"]
    assert unchanged == last.json()["snapshot"], "no change makes no snapshot"
    for earlier in (before, middle):
        again = server.get("/v1/best", **asked, snapshot=earlier.json()["snapshot"])
        assert again.content == earlier.content


def test_a_rollback_answers_within_seconds(server: Server) -> None:
    asked = ASKED | {"dims": "1024,1024,1024"}
    before = server.get("/v1/best", **asked).json()
    other = record(TUNED[2], 5e-4, role=Role.FINAL, kernel="tiled", config=tiled(16))
    with Store.open(server.db) as store:
        crown(store, other, library(TUNED[2], 1e-3), 2.0)
    answers = lambda: server.get("/v1/best", **asked).json()
    first = eventually(lambda: (told := answers())["record_id"] == other.id and told, 20)
    words = "gemm 1024 1024 1024 --layout nn --why tried"
    place = [*words.split(), "--device", BOARD.name, "--db", server.db]
    assert run(["champions", "rollback", *place]) == 0
    told = eventually(lambda: (told := answers())["record_id"] == before["record_id"] and told, 5)
    assert told["snapshot"] > first["snapshot"]
    assert server.get("/v1/best", **asked, snapshot=first["snapshot"]).json() == first


@pytest.mark.parametrize("form", ["source", "python", "json"])
def test_exports_are_files_with_a_digest(filled: Server, form: str) -> None:
    found = filled.get("/v1/export", **ASKED, format=form)
    assert found.status_code == 200, found.text
    digest = base64.b64encode(hashlib.sha256(found.content).digest()).decode()
    assert found.headers["repr-digest"] == f"sha-256=:{digest}:"
    name = found.headers["content-disposition"].split('"')[1]
    assert name.startswith("gemm_naive_512x512x512") or name.endswith(".zip")
    if name.endswith(".zip"):
        archive = zipfile.ZipFile(io.BytesIO(found.content))
        assert all(archive.read(name) for name in archive.namelist())
    assert filled.get("/v1/export", **ASKED, format=form).headers["etag"] == found.headers["etag"]


def test_what_was_not_measured_is_not_exported(filled: Server) -> None:
    found = filled.get("/v1/export", **ASKED | {"dims": "777,77,7"})
    assert found.status_code == 404
    assert "Run `tuner tune gemm 777 77 7 " in found.json()["error"]["message"]
    for form in ("exe", "triton"):
        assert filled.get("/v1/export", **ASKED, format=form).status_code == 422


def test_records_and_champions_come_in_pages(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    listed = command_json(capsys, "records", "list", "--limit", "3", "--json", "--db", server.db)
    page = server.get("/v1/records", limit=3).json()
    assert page["records"] == listed
    seen, before = [], 0
    while before is not None:
        page = server.get("/v1/records", operation="gemm", limit=7, before=before).json()
        seen += [each["id"] for each in page["records"]]
        before = page["next"]
    assert len(seen) == len(set(seen)) >= 20
    finals = server.get("/v1/records", role="final", shape="512,512,512", device=BOARD.uuid).json()["records"]
    assert {each["role"] for each in finals} == {"final"}
    failed = server.get("/v1/records", outcome="COMPILE_FAILED").json()["records"]
    assert len(failed) == 3
    one = server.get(f"/v1/records/{failed[0]['id']}").json()
    assert one == failed[0]
    assert server.get("/v1/records/no-id").status_code == 422
    assert server.get("/v1/records/00000000-0000-0000-0000-000000000000").status_code == 404
    champions = server.get("/v1/champions", limit=2).json()
    assert (len(champions["champions"]), champions["next"]) == (2, 2)
    assert champions["count"] > 100, "published ones are there, too"
    problems = server.get("/v1/problems").json()["problems"]
    assert {(each["shape"]["m"], each["device"]["name"]) for each in problems if each["records"]} == {
        *((n, BOARD.name) for n in (256, 512, 640, 1024)), (128, CPU.name),
    }  # fmt: skip
    assert len(problems) == 100
    assert server.get("/v1/problems", device="nowhere").json()["problems"] == []


def test_kernels_and_counts_are_the_commands(filled: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert filled.get("/v1/kernels").json()["kernels"] == command_json(capsys, "kernels", "--json")
    one = filled.get("/v1/kernels", operation="gemv", target="cpu").json()["kernels"]
    assert {(each["operation"], each["target"]) for each in one} == {("gemv", "cpu")}
    told = filled.get("/v1/devices").json()
    assert told["here"] == command_json(capsys, "devices", "--json")
    assert BOARD.name in {each["name"] for each in told["devices"]}
    assert filled.get("/v1/stats").json()["tallies"] == command_json(
        capsys, "records", "stats", "--json", "--db", filled.db
    )
    assert "gemm" in {each["name"] for each in filled.get("/v1/operations").json()["operations"]}


def test_machines_are_told_how_it_goes(filled: Server) -> None:
    assert filled.get("/healthz").json()["ok"] is True
    assert filled.get("/readyz").json()["ready"] is True
    filled.get("/v1/best", **ASKED)
    text = filled.get("/metrics").text
    for name in (
        'tuner_requests_total{method="GET",route="/v1/best",status="200"}',
        'tuner_answers_total{match="exact"}',
        "tuner_request_seconds_bucket", "process_resident_memory_bytes", "tuner_snapshot ",
        'tuner_rows{table="records"}', 'tuner_jobs{state="queued"} 0.0',
    ):  # fmt: skip
        assert name in text
    described = filled.get("/openapi.json").json()
    best = described["paths"]["/v1/best"]["get"]
    assert {each["name"] for each in best["parameters"]} >= {"operation", "dims", "device", "snapshot"}
    lines = [json.loads(line) for line in filled.log.read_text().splitlines()]
    one = next(line for line in lines if line.get("path") == "/v1/best")
    assert one.keys() == {"at", "level", "request", "path", "status", "ms", "bytes", "client", "caller"}


def test_what_has_no_exact_answer_is_counted_as_wanted(server: Server) -> None:
    for _ in range(3):
        server.get("/v1/best", **ASKED | {"dims": "801,803,805"})

    def counted() -> dict | None:
        told = server.get("/v1/wanted").json()["wanted"]
        # What was asked is stored every few seconds: some of it may come before the rest.
        return next((each for each in told if each["shape"]["m"] == 801 and each["calls"] >= 3), None)

    found = eventually(counted, 60)
    assert (found["calls"], found["device"]["name"], found["match"]) == (3, BOARD.name, "predicted")


def test_questions_that_another_sites_page_makes_a_browser_ask_are_no_demand(filled: Server) -> None:
    query = ASKED | {"dims": "811,813,815"}
    with filled.client() as client:
        for site in ("cross-site", "cross-site", "none"):
            assert client.get("/v1/best", params=query, headers={"sec-fetch-site": site}).status_code == 200
    wanted = lambda: filled.get("/v1/wanted", operation="gemm").json()["wanted"]
    counted = eventually(lambda: [row["calls"] for row in wanted() if row["shape"]["m"] == 811], 30)
    assert counted == [1]


def test_only_what_won_again_answers_where_that_is_asked_for(server: Server) -> None:
    plain, confirmed = (server.get("/v1/best", **ASKED | more).json() for more in ({}, {"confirmed": "true"}))
    assert plain["match"] == "exact"
    assert confirmed.get("record_id") != plain["record_id"], "no champion of this database won again"


def test_a_row_keeps_its_bits_by_the_latest_set(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    problem, asked = gemm(64, 512, 512), ASKED | {"dims": "33,512,512", "invariant": "m"}
    assert server.get("/v1/best", **asked).status_code == 404
    for time_s in (2e-3, 1e-3):
        with Store.open(server.db) as store:
            study = rows_study(problem, BOARD.name, "cold", "m")
            one = record(problem, time_s, study=study, session=f"{time_s}")
            store.add(replace(one, measurement=replace(one.measurement, rows="0123456789ab")))
        told = lambda of: (a := server.get("/v1/best", **asked).json()).get("record_id") == of and a
        answer = eventually(functools.partial(told, one.id), 30)
        assert (answer["match"], answer["rows"]) == ("invariant", "0123456789ab")
        assert answer["record"]["shape"]["m"] == 64
    words = f"gemm 33 512 512 --device h200 --invariant m --server {server.base} --json".split()
    assert command_json(capsys, "best", *words)["record_id"] == answer["record_id"]
