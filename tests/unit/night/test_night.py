"""A plan of problems until a deadline, on the fake device."""

import io
import itertools
import json
import re
import shutil
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from fixtures.fake_device import BEST, BEST_S, LEGAL, TOY, configs, copy_toy, rule, stored, write_device

from tuner.cli.main import run
from tuner.declare import catalogue
from tuner.devices.detect import find
from tuner.errors import Interrupted
from tuner.night import scheduler
from tuner.night.command import Printer
from tuner.night.night import LocalRunner
from tuner.night.plan import PlanItem, read_plan
from tuner.night.scheduler import Night
from tuner.night.watching import NightWatch
from tuner.results.record import Role
from tuner.store import Store
from tuner.study.progress import Progress, ProgressView

Told = Callable[..., tuple[int, str, str]]
pytestmark = pytest.mark.usefixtures("nothing_watched")
PLAN = """
[defaults]
sampler = "random"

[[problems]]
file = "toy.py"
n = [100, 200]
trials = 100
"""


#: The toy's values of its parameters in most tests, beside `BEST`'s: four configs, not 58.
FEW = {
    r'\w+\("BLOCK"[^)]*\)': 'choice("BLOCK", 128, 256)',
    r'\w+\("ITEMS"[^)]*\)': 'choice("ITEMS", 4)',
    '"ITEMS": 1,': '"ITEMS": 4,',
}


@pytest.fixture
def nothing_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sentinels, no confirmation of champions: they take several processes; see test_night_watch.py."""
    monkeypatch.setattr(NightWatch, "_affordable", lambda self, seconds, problems: 0)
    monkeypatch.setattr(NightWatch, "confirm_new", lambda self, new: None)


@pytest.fixture
def told(here: Path, capsys: pytest.CaptureFixture[str]) -> Told:
    """Runs `tuner nightly` on plan.toml: exit code, stdout, stderr."""
    copy_toy(here)
    toy = TOY.read_text()
    for values, fewer in FEW.items():
        toy, found = re.subn(values, fewer, toy)
        assert found
    (here / "toy.py").write_text(toy)
    write_device(here / "device.json", baseline_s=2 * BEST_S)

    def called(plan: str, *arguments: str) -> tuple[int, str, str]:
        (here / "plan.toml").write_text(plan)
        capsys.readouterr()
        given = [] if "device" in plan else ["--device", "fake:device.json"]
        code = run(["nightly", "plan.toml", *given, *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return called


def states(answer: tuple[int, str, str], code: int = 0) -> list[str]:
    assert answer[0] == code, answer[2]
    report = json.loads(answer[1])
    found = [each["state"] for each in report["problems"]]
    assert report["counts"] == {state: found.count(state) for state in found}
    return found


def test_a_night_tunes_every_problem_and_the_next_skips_them(told: Told, here: Path) -> None:
    answer = told(PLAN, "--json")
    assert states(answer) == ["tuned", "tuned"]
    report = json.loads(answer[1])
    assert report["stopped"] == ""
    for each, n in zip(report["problems"], (100, 200), strict=True):
        assert (each["shape"], each["before"], each["improvement"]) == ({"n": n}, None, None)
        assert (each["verdict"], each["why"], each["after"]["config"]) == ("first", "space covered", BEST)
        assert (each["after"]["time_s"], each["after"]["speedup"]) == pytest.approx((BEST_S, 2.0), rel=0.01)
        assert each["after"]["record_id"]
    assert "toy 100 float32 plain: tuned, space covered" in answer[2]
    before = [stored(here, role=None, n=n) for n in (100, 200)]
    # The same plan again, as people see it, and with one problem more.
    code, out, _ = told(PLAN, "--quiet")
    assert code == 0
    assert out.count("done before") == 2
    assert "2.000" in out
    assert [stored(here, role=None, n=n) for n in (100, 200)] == before
    more = told(PLAN.replace("[100, 200]", "[300, 100, 200]").replace("trials = 100", "trials = 2"), "--json")
    assert states(more) == ["tuned", "done before", "done before"]


def test_an_interrupted_night_keeps_its_slices(told: Told, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Large and slow enough that no slice is the last.
    shutil.copy(TOY, here)
    write_device(here / "device.json", baseline_s=2 * BEST_S, base_s=0.005, pace=1.0)
    (here / "plan.toml").write_text(PLAN.replace("trials = 100", "seconds = 1000"))
    heard: list[int] = []

    def said(item: PlanItem, number: int, gain: float | None) -> None:
        heard.append(item.problem.dims["n"])
        turns = [n for n, _ in itertools.groupby(heard)]
        if turns[:3] == [100, 200, 100] and turns[-1] == 100 and stored(here, n=100):
            raise Interrupted("as if by Ctrl-C")

    with Store.open("sqlite:///studies.db") as store, monkeypatch.context() as patch:
        for name, value in {"LEAST_SLICE_S": 0.5, "MOST_SLICE_S": 1.0, "OPENINGS": 0}.items():
            patch.setattr(scheduler, name, value)
        # There is less time than the problems may take, so both have a slice before either has more.
        night = Night(read_plan(here / "plan.toml"), store, 1, time.monotonic() + 500, said=said)
        with pytest.raises(Interrupted, match=r"as if by Ctrl-C"):
            list(night.run(LocalRunner(store, (find("fake:device.json"),), Printer(True).view)))
    (first,) = (item for item in night.unfinished("stop") if item.item.problem.dims["n"] == 100)
    assert (first.state, first.why, first.slices) == ("searched", "stop", heard.count(100))
    kept = stored(here, n=100)
    assert first.trials["total"] == len(kept) > 0
    assert not stored(here, role=Role.FINAL, n=100)
    # However often a night comes back to a problem, its library is measured before the search once.
    assert len(stored(here, role=Role.BASELINE, n=100)) == 1
    write_device(here / "device.json", baseline_s=2 * BEST_S)
    assert states(told(PLAN, "--json"))[0] == "tuned"
    trials = stored(here, n=100)
    assert {trial.id for trial in kept} <= {trial.id for trial in trials}
    assert len(configs(trials)) == len(set(configs(trials))) == LEGAL


def test_stale_champions_come_first_and_others_are_no_reason_to_tune_again(told: Told, here: Path) -> None:
    few = PLAN.replace("trials = 100", "trials = 2")
    one = few.replace("[100, 200]", "[200]")
    assert states(told(one, "--json")) == ["tuned"]
    # A study of other objectives crowns a champion of its own; the one before stays done.
    both = one.replace("trials = 2", 'trials = 2\nobjective = "time,error"')
    code, out, err = told(both, "--json", "-o", "plots")
    assert code == 0, err
    (item,) = json.loads(out)["problems"]
    assert item["objectives"] == ["time", "error"]
    assert item["front"][0]["config"]
    assert len(list((here / "plots").iterdir())) == 1
    assert states(told(one, "--json")) == ["done before"]
    with (here / "toy.cu").open("a") as source:
        source.write("__device__ int another;\n")
    answer = told(few, "--json")
    assert states(answer) == ["tuned"] * 2
    told_of = [line.split(":")[0] for line in answer[2].splitlines() if ": tuned" in line]
    assert told_of == [f"toy {n} float32 plain" for n in (200, 100)]


def test_a_limit_of_the_error_and_a_class_of_bits_are_held_and_told(told: Told, here: Path) -> None:
    exact = BEST | {"ORDER": "blocked"}
    rules = [rule(BEST, latency_s=BEST_S, error_rel=3e-7), rule(exact, latency_s=1.2 * BEST_S, error_rel=1e-7)]
    rules.append(rule({}, latency_s=4 * BEST_S))
    write_device(here / "device.json", rules=rules, baseline_s=2 * BEST_S, baseline_error_rel=1e-7)
    free = PLAN.replace("[100, 200]", "[100, 1000]")
    limited = free.replace("[defaults]", "[defaults]\nerror_limit = 1.5")
    assert states(told(free, "--json")) == ["tuned", "tuned"]
    held = told(limited.replace("error_limit = 1.5", 'bits = "keep"'), "--report", "held", "--json")
    answer = told(limited, "--report", "limited", "--json")
    for folder, night, changed in (("held", held, [False, False]), ("limited", answer, [False, True])):
        # Another limit, or class, is other work.
        assert states(night) == ["tuned", "tuned"]
        assert [one["bits_changed"] for one in json.loads(night[1])["problems"]] == changed
        [markdown] = (here / folder).glob("*.md")
        assert ("champions change the bits of 1 problem(s): toy 1000" in markdown.read_text()) is any(changed)
    few, many = json.loads(answer[1])["problems"]
    assert "less output than 256 elements" in few["error_limit"]["says_nothing"]
    assert (few["after"]["config"], many["after"]["config"]) == (BEST, exact)
    assert (many["error_limit"]["factor"], many["error_limit"]["says_nothing"]) == (1.5, "")
    assert many["error_limit"]["ratio"] == pytest.approx(1, abs=0.2)
    assert told(limited, "--quiet")[1].count("of 1.5") == 1


def test_configs_that_keep_a_rows_bits_are_tuned_for_all_sizes_and_not_again(told: Told) -> None:
    plan = PLAN.replace("[100, 200]", "4\ninvariant = 'n'").replace("trials = 100", "seconds = 60\ntrials = 9")
    for state in ("tuned", "done before"):
        answer = told(plan, "--json")
        assert states(answer) == [state]
        assert json.loads(answer[1])["problems"][0]["after"]["config"] == BEST
    # The set answers for smaller sizes, too.
    assert states(told(plan.replace("n = 4", "n = 3"), "--json")) == ["done before"]


def test_a_problem_that_fails_does_not_end_the_night(told: Told) -> None:
    few = PLAN.replace("trials = 100", "trials = 2").replace("[100, 200]", "[2000000000, 100]")
    answer = told(few, "--json")
    assert states(answer, code=1) == ["failed", "tuned"]
    assert "must fit into free memory" in json.loads(answer[1])["problems"][0]["why"]
    assert answer[2].endswith("tuner: 1 of 2 problems failed: toy 2000000000 float32 plain\n")


@pytest.mark.parametrize(("library_s", "none"), [(2 * BEST_S, 0), (0.1 * BEST_S, 1)])
def test_champions_behind_the_library_win_nothing(told: Told, here: Path, library_s: float, none: int) -> None:
    write_device(here / "device.json", baseline_s=library_s)
    few = PLAN.replace("[100, 200]", "100")
    assert told(few, "--quiet")[1].count("No problem got a faster champion.") == none


def test_a_night_begins_only_in_its_window(told: Told, here: Path) -> None:
    now = datetime.now()
    hours = [f"{now + timedelta(hours=more):%H:%M}" for more in (-2, -1, 1, 2)]
    outside = f"this night is from {hours[2]} until {hours[3]}, and it is"
    for options in (["--from", hours[2], "--until", hours[3]], ["--from", hours[2], "--until", hours[1]]):
        assert told(PLAN, *options)[0] == 5
    code, out, err = told(f'from = "{hours[2]}"\nuntil = "{hours[3]}"\n{PLAN}')
    assert (code, out) == (5, "")
    assert err.startswith(f"tuner: {outside}")
    assert "takes 14 hours at the most, and until" in told(PLAN, "--until", hours[1])[2]
    assert not (here / "studies.db").exists(), "nothing was done"
    few = PLAN.replace("trials = 100", "trials = 1").replace("[100, 200]", "100")
    assert states(told(few, "--json", "--from", hours[1], "--until", hours[2])) == ["tuned"]


def test_a_device_that_dies_ends_the_night_with_what_was_done(told: Told, here: Path) -> None:
    dying = [{"fault": "unwell"}]
    write_device(here / "dying.json", rules=dying, dead=True)
    code, out, err = told(
        PLAN.replace("[defaults]", '[defaults]\ndevice = "fake:dying.json"'), "--json", "--quiet"
    )
    assert code == 3
    assert "stays unwell" in json.loads(out)["stopped"]
    assert err.splitlines()[-1].startswith("tuner: Fake board stays unwell")


@pytest.mark.parametrize(("plan", "options", "code", "message"), [
    (PLAN, ["--from", "22:00"], 2, "--from goes with --until"),
    (PLAN, ["-o", "plots"], 2, "-o writes a plot of the front, which takes several objectives"),
])  # fmt: skip
def test_bad_plans(told: Told, here: Path, plan: str, options: list[str], code: int, message: str) -> None:
    got, out, err = told(plan, *options)
    assert (got, out) == (code, ""), err
    assert message in err
    assert not (here / "studies.db").exists()


def test_a_plan_that_is_much_too_long_is_told_and_shown_in_short(told: Told, here: Path) -> None:
    plan = PLAN.replace("[100, 200]", str(list(range(100, 160)))).replace("trials = 100", "seconds = 60")
    code, out, err = told("seconds = 0.5\n" + plan)
    assert code == 0
    assert "and 40 more that were not reached; --json has each" in out
    assert ": not reached" not in err
    assert out.count("the deadline came first") == 20
    assert not stored(here, role=None, n=100)


def test_lines_of_a_night_do_not_run_together_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.BytesIO()
    terminal = io.TextIOWrapper(screen, write_through=True)
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    problem = catalogue.from_file(TOY).operation("toy").problem({"n": 100})
    with ProgressView(problem, quiet=False) as view:
        view(Progress())
        while b"opening" not in screen.getvalue():  # a thread draws it
            time.sleep(0.01)
        Printer(quiet=False).say("toy 100: slice 1")
    assert b"toy 100: slice 1" in re.split(rb"[\r\n]+|\x1b\[2K", screen.getvalue())


def test_surveys_come_before_the_problems_and_go_on_the_next_night(told: Told, here: Path) -> None:
    (here / "shapes.toml").write_text('[[problems]]\nfile = "toy.py"\nn = [100, 300]\n')
    plan = """
[[surveys]]
operation = "toy"
file = "toy.py"
shapes = "shapes.toml"
drawn = false
configs = 4
"""
    code, _, err = told(plan)
    assert (code, "survey of toy: 10 timings at 2 problems" in err) == (0, True), err
    assert "survey of toy: 0 timings at 0 problems" in told(plan)[2]
