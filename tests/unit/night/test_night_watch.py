"""Nights on a fake board: what changed is said once, with its cause; reports; rollbacks; how a night ended."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.fake_device import BEST, BOARD, copy_toy, database, rule, write_device
from fixtures.records import champion, measured, record

from tuner.cli.main import run
from tuner.declare import catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.devices.detect import find
from tuner.night import stored
from tuner.night.changes import ProblemNight
from tuner.night.plan import PlanItem
from tuner.night.sentinels import Pass, Watched, choose
from tuner.night.stored import Player, Sentinel
from tuner.night.watching import go_back
from tuner.results.measurement import Error, Measurement, Outcome
from tuner.results.record import ProblemKey, Role, new_id
from tuner.results.sentinel import BEFORE, CHAMPION
from tuner.results.verdict import Act
from tuner.store import Store
from tuner.study import crowns

OTHER = {"BLOCK": 128, "ITEMS": 4, "ORDER": "blocked"}
KEY = ProblemKey("toy", (("n", 1000),), "float32", "plain")
PLAN = """
[defaults]
device = "fake:device.json"
sampler = "random"
[watch]
seconds = 0.1
{watch}
[[problems]]
file = "toy.py"
n = 1000
trials = 5
"""
TIMED: dict[tuple[str, tuple[str, ...]], Sentinel] = {}
Ran = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Each repeat is two processes more.
    monkeypatch.setattr("tuner.night.watching.REPEATS", 1)
    copy_toy(here)
    return here


def board(
    folder: Path, best_s: float = 5e-4, other_s: float = 6e-4, library_s: float = 1e-3, **more: Any
) -> str:
    """The fake board with these times of the champion, the one before it and the library."""
    rules = [
        rule(BEST, latency_s=best_s, **more.pop("best", {})), rule(OTHER, latency_s=other_s),
        {"where": {}, "latency_s": 2e-3},
    ]  # fmt: skip
    return write_device(folder / "device.json", rules=rules, baseline_s=library_s, **more)


def crown(store: Store, config: dict[str, Any], day: int, bits: str = "") -> str:
    """Crowns a config of the toy on a day."""
    found = find("fake:device.json").info
    kernel = catalogue.from_file(Path("toy.py")).of("toy", "cuda")[0]
    of = record(
        KEY, 5e-4, found, kernel=kernel.name, config=config, source_hash=kernel.source_hash, role=Role.FINAL,
        origin=str(Path("toy.py").absolute()), measurement=measured(5e-4, bits=bits), study="",
    )  # fmt: skip
    exact = Measurement(Outcome.MEASURED, samples_s=(1e-3,), error=Error(1e-6, 1e-7, 0.1))
    library = record(KEY, 1e-3, found, kernel="fakeBLAS", config={}, role=Role.BASELINE, measurement=exact)
    made = champion(
        of, f"2026-01-0{day}T00:00:00.000000+00:00", verdict="first" if day == 1 else "faster",
        baseline=library, speedup=2.0,
    )  # fmt: skip
    store.crown(made)
    return made.id


def past(store: Store, nights: int = 8) -> None:
    """Nights before this one, in which nothing changed."""
    found = find("fake:device.json")
    declared = catalogue.from_file(Path("toy.py"))
    candidate = PlanItem(declared.operation("toy").problem({"n": 1000}), declared)
    (what,), _ = choose(store, found.info, [candidate], 1)
    # Equal boards with equal contenders were timed by an earlier test.
    which = Path("device.json").read_text(), tuple(str(each.config) for each in what.contenders)
    if which not in TIMED:
        TIMED[which] = Pass(new_id(), 1, 0.1, processes=1).over(found, {}, [what])[0]
    timed = TIMED[which]
    random = np.random.default_rng(1)
    for night in range(1, nights + 1):
        at = datetime.fromisoformat(timed.measured_at) - timedelta(days=night)
        factors = np.exp(random.normal(0, 0.001, len(timed.players)))
        players = tuple(
            replace(player, rounds_s=tuple(factor * time_s for time_s in player.rounds_s))
            for player, factor in zip(timed.players, factors.tolist(), strict=True)
        )
        when = at.isoformat(timespec="microseconds")
        stored.add(store, [replace(timed, id=new_id(), night=new_id(), players=players, measured_at=when)])


@pytest.fixture
def ran(folder: Path, capsys: pytest.CaptureFixture[str]) -> Ran:
    """Runs `tuner` with --json: exit code, and what it says."""

    def called(*arguments: str, watch: str = "") -> tuple[int, dict[str, Any]]:
        (folder / "plan.toml").write_text(PLAN.format(watch=watch))
        capsys.readouterr()
        code = run([*arguments, "--db", database(folder), "--json"])
        out = capsys.readouterr()
        assert out.out, out.err
        return code, json.loads(out.out)

    return called


def test_a_slower_champion_is_said_once_with_its_cause_and_a_report(folder: Path, ran: Ran) -> None:
    board(folder)
    with Store.open(database(folder)) as store:
        crown(store, BEST, 1)
        past(store)
    board(folder, best_s=5.2e-4, info={"driver": "2.0"})
    code, found = ran("watch", "plan.toml", "--quiet", "--report", "pages")
    assert code == 4
    (alert,) = found["alerts"]
    assert (alert["cause"], alert["slower"]) == ("driver", True)
    assert alert["why"].endswith("the driver was 1.0 and is 2.0")
    (problem,) = alert["problems"]
    assert problem["change"] == pytest.approx(0.04, abs=0.01)
    assert problem["interval"][0] < 0.04 < problem["interval"][1]
    assert alert["command"].startswith("tuner watch explain toy 1000")
    assert found["sentinels"][0]["against_library"]["verdict"] == "faster"
    page, markdown, data = sorted(
        folder.glob("pages/*"), key=lambda each: [".html", ".md", ".json"].index(each.suffix)
    )
    assert json.loads(data.read_text()) == found
    assert "the driver changed" in markdown.read_text().lower()
    text = page.read_text()
    assert "The driver changed: 1 problem" in text.replace("\n", " ")
    assert "<script src" not in text
    assert ran("report", found["begun_at"][:10])[1] == found
    assert run(["report", "LAST", "--db", database(folder)]) == 1, "a watch is no night"
    # The next night begins from what was said.
    assert ran("watch", "plan.toml", "--quiet")[0] == 0
    assert run(["report", "2020-01-01", "--db", database(folder)]) == 1


def test_a_night_without_changes_has_no_alert_and_confirms_the_champion(folder: Path, ran: Ran) -> None:
    board(folder)
    with Store.open(database(folder)) as store:
        crown(store, OTHER, 1)
        crown(store, BEST, 2)
        past(store)
    code, found = ran("watch", "plan.toml", "--quiet")
    assert (code, found["alerts"], found["behind"]) == (0, [], [])
    assert found["confirmed"] == ["toy 1000 float32 plain"]
    with Store.open(database(folder)) as store:
        assert store.champion(KEY, "FAKE-1", "cold", confirmed=True) is not None


def test_a_board_of_other_bits_than_the_champions_is_told_and_confirms_nothing(folder: Path, ran: Ran) -> None:
    bits = ""
    for day, others in enumerate(({}, {}, {"error_rel": 1e-7}), 1):
        board(folder, info={"uuid": f"FAKE-{day}"}, best=others)
        with Store.open(database(folder)) as store:
            for sentinel in stored.sentinels(store, KEY)[:1]:
                bits = sentinel.player(CHAMPION).bits
            crown(store, BEST, day, bits)
        _, found = ran("watch", "plan.toml", "--quiet", "--report", f"{day}")
        told = [one["told"] for one in found["behind"] if one["behind"] == "bits"]
        assert len(told) == bool(others)
    assert re.fullmatch(f"its bits are of class .{{12}} on board FAKE-3, and were {bits} .*", told[0])
    [markdown] = (folder / "3").glob("*.md")
    assert told[0] in markdown.read_text()
    with Store.open(database(folder)) as store:
        assert (crowns.reign(store, KEY).log[-1].act, found["confirmed"]) == (Act.DOUBT, [])


@pytest.mark.parametrize(("error_rel", "told", "use", "state"), [
    (1e-7, "was faster than the champion, and answers until it is tuned again", "fakeBLAS", "stale"),
    (1e-4, "x less exact, and faster than the champion", "kernel", "to tune"),
])  # fmt: skip
def test_a_library_that_is_faster_is_told_the_first_night(
    folder: Path, ran: Ran, error_rel: float, told: str, use: str, state: str
) -> None:
    spec = board(folder, library_s=4e-4, baseline_error_rel=error_rel)
    with Store.open(database(folder)) as store:
        crown(store, BEST, 1)
    code, found = ran("watch", "plan.toml", "--quiet")
    assert code == 4
    (behind,) = found["behind"]
    assert behind["behind"] == "library"
    assert behind["told"].endswith(told)
    assert ran("best", "toy.py", "1000", "--device", spec)[1]["use"] == use
    assert ran("nightly", "plan.toml", "--dry-run")[1]["problems"][0]["state"] == state
    # What lookups follow is told once; a library that is another one, until it is not.
    assert ran("watch", "plan.toml", "--quiet")[0] == (0 if use == "fakeBLAS" else 4)


@pytest.mark.parametrize("automatic", [False, True])
def test_a_champion_behind_the_one_before_is_reported_and_taken_back_only_if_the_plan_says_so(
    folder: Path, ran: Ran, automatic: bool
) -> None:
    board(folder)
    with Store.open(database(folder)) as store:
        crown(store, OTHER, 1)
        crown(store, BEST, 2)
    board(folder, best_s=6.4e-4)
    rule = 'rollback = "automatic"' if automatic else ""
    if automatic:
        code, found = ran("watch", "plan.toml", "--quiet", watch=rule)
        assert (code, len(found["behind"]), found["rolled_back"]) == (4, 1, []), "one night is not enough"
    code, found = ran("watch", "plan.toml", "--quiet", watch=rule)
    assert code == 4
    (behind,) = found["behind"]
    assert behind["command"].startswith("tuner champions rollback toy 1000")
    assert len(found["rolled_back"]) == automatic
    with Store.open(database(folder)) as store:
        reign = crowns.reign(store, KEY)
        assert reign.champion.record.config == (OTHER if automatic else BEST)
        if automatic:
            assert (reign.log[-1].who, reign.log[-1].act.value) == ("tuner nightly", "rollback")


def test_a_night_says_that_it_has_no_sentinels_and_how_it_ended(
    folder: Path, ran: Ran, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    board(folder, library_s=4e-4)  # no config is as fast
    monkeypatch.setattr("tuner.night.reporting.PAUSES_S", ())
    code, found = ran("nightly", "plan.toml", "--quiet", "--report", "pages", "--notify", "http://127.0.0.1:9/")
    assert code == 0
    assert found["no_sentinels"] == "no problem has a champion to watch yet"
    with Store.open(database(folder)) as store:
        assert store.champion(KEY, "FAKE-1", "cold", confirmed=True) is not None
    page = next(folder.glob("pages/*.html")).read_text()
    assert "This night has no sentinels" in page
    # The problem's first champion is slower than the library.
    assert "No problem got a faster" in " ".join(page.split())
    code, last = ran("nightly", "--last")
    assert (code, last["counts"], last["alerts"]) == (0, {"tuned": 1}, 0)
    with Store.open(database(folder)) as store:
        stored.note(store, new_id(), stored.BEGUN, {"plan": "p", "host": "h", "boards": []})
    assert ran("nightly", "--last")[1]["ended_at"] is None
    capsys.readouterr()
    run(["nightly", "--last", "--db", database(folder)])
    assert "did not end" in capsys.readouterr().out


def test_what_is_used_most_is_watched_and_others_are_named(folder: Path) -> None:
    board(folder)
    declared = catalogue.from_file(Path("toy.py"))
    with Store.open(database(folder)) as store:
        crown(store, BEST, 1)
        candidates = [PlanItem(declared.operation("toy").problem({"n": n}), declared) for n in (1000, 2000)]
        chosen, left = choose(store, find("fake:device.json").info, candidates, 1)
        assert [str(each.problem) for each in chosen] == ["toy 1000 float32 plain"]
        assert left == ["toy 2000 float32 plain: it has no champion of the kernels as declared now"]
        assert choose(store, find("fake:device.json").info, candidates, 0)[1][-1].endswith("are used more")


def test_a_problem_is_shown_night_by_night(folder: Path, ran: Ran) -> None:
    board(folder)
    with Store.open(database(folder)) as store:
        crown(store, BEST, 1)
        past(store)
    code, nights = ran("watch", "explain", "toy.py", "1000")
    assert (code, len(nights)) == (0, 8)
    assert nights[0]["at"] < nights[-1]["at"]
    assert nights[0]["champion"]["time_s"] == pytest.approx(5e-4, rel=0.01)
    assert nights[0]["against_library"]["speedup"] == pytest.approx(2, rel=0.01)
    assert run(["watch", "explain", "toy.py", "1000", "--db", database(folder)]) == 0
    assert run(["watch", "explain", "toy.py", "33", "--db", database(folder)]) == 1


# --- boards together ----------------------------------------


def watch(store: Store, board: str, slower: float) -> ProblemNight:
    """A night of a board and its repeats; the champion is so much slower, and was in the last night, too."""
    device = DeviceInfo.from_json({**BOARD, "uuid": board})
    random = np.random.default_rng(1)

    def timed(process: int) -> Sentinel:
        noise = random.normal(0, 0.001, 40)
        rounds = tuple((1e-3 * (1 + slower) * np.exp(noise)).tolist())
        players = (
            Player(CHAMPION, "blocks", {"BLOCK": 2}, rounds),
            Player(BEFORE, "blocks", {"BLOCK": 1}, (1e-3,) * 40),
        )
        return Sentinel(KEY, device, "cold", "night", process, players)

    toy: Any = None
    return ProblemNight(
        [timed(1)], timed(1), [timed(process) for process in range(2, 6)],
        Watched(toy, "cold", (), crowns.reign(store, KEY)),
    )  # fmt: skip


@pytest.fixture
def store(here: Path) -> Store:
    """Two champions of the toy, the second for being faster."""
    opened = Store.open("sqlite:///studies.db")
    device = DeviceInfo.from_json(BOARD)
    for day, verdict in ((1, "first"), (2, "faster"), (3, "faster")):
        of = record(KEY, 1e-3, device, kernel="blocks", config={"BLOCK": day - 1}, role=Role.FINAL,
                    measurement=measured(1e-3))  # fmt: skip
        opened.crown(champion(of, f"2026-01-0{day}T00:00:00.000000+00:00", verdict=verdict))
    return opened


@pytest.mark.parametrize(
    ("slower", "gone"), [((0.03, 0.03), True), ((0.03, 0.0), False), ((0.015, 0.015), False)]
)
def test_a_night_goes_back_once_if_boards_agree(store: Store, slower: tuple[float, float], gone: bool) -> None:
    with store:
        nights = [watch(store, "FAKE-1", slower[0]), watch(store, "FAKE-2", slower[1])]
        assert bool(go_back(store, nights)) == gone
        reign = crowns.reign(store, KEY)
        assert reign.champion.record.config == {"BLOCK": 1 if gone else 2}, "from the last one, and no further"
        assert len(reign.log) == gone
