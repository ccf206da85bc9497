"""Surveys on fake devices with real worker processes, and one on the CPU."""

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_device import BEST, BEST_S, LEGAL, TOY, database, fault_configs, rule, start, write_device
from fixtures.waiting import eventually

from tuner.cli.main import run
from tuner.declare import catalogue
from tuner.declare.space import Config
from tuner.devices.detect import find
from tuner.errors import NothingFound
from tuner.model.fit import joined
from tuner.model.predict import Predictor
from tuner.model.stored import models, to_bytes
from tuner.model.survey import SurveyProgress, run_survey
from tuner.model.survey_design import Ranges, SurveyRequest, design
from tuner.model.table import Timings
from tuner.results.measurement import Outcome
from tuner.results.record import ProblemKey
from tuner.results.survey import LIBRARY, SurveyConfig, SurveyPart, Timing
from tuner.store import Store, watched
from tuner.study.starting import Predictions

#: A crash costs no more than the config at a problem or two.
FAULTS_SEEN = {
    "unwell": Outcome.LAUNCH_FAILED, "wrong_result": Outcome.WRONG_RESULT, "crash": Outcome.CRASHED,
    "compile_crash": Outcome.COMPILE_FAILED,
}  # fmt: skip


@pytest.fixture
def device(tmp_path: Path) -> str:
    return write_device(tmp_path / "device.json", baseline_s=2 * BEST_S)


def request(spec: str, sizes: tuple[int, ...] = (1000, 33), **more: Any) -> SurveyRequest:
    """A survey of the toy at problems of one's own unless told otherwise."""
    device, declared = find(spec), catalogue.from_file(TOY)
    operation = declared.operation("toy")
    problems = tuple(operation.problem({"n": n}, "", layout) for n in sizes for layout in operation.layouts)
    survey = SurveyRequest(
        operation, tuple(declared.of("toy", device.target)), device, 60.0, problems=problems, drawn=False
    )
    return replace(survey, **more)


def surveyed(folder: Path, survey: SurveyRequest) -> tuple[SurveyProgress, list[SurveyPart]]:
    with Store.open(database(folder)) as store:
        progress = run_survey(survey, store)
        return progress, store.survey_parts("toy", survey.device.info.name, survey.regime)


def times(survey: SurveyRequest, parts: list[SurveyPart]) -> Timings:
    known = joined(parts, survey.operation, survey.kernels)
    assert known is not None
    return known


def test_configs_are_compiled_once_and_timed_at_every_problem(tmp_path: Path, device: str) -> None:
    survey = request(device, configs=LEGAL, per_problem=LEGAL)
    progress, parts = surveyed(tmp_path, survey)
    assert (progress.problems, progress.timings) == (4, 4 * (LEGAL + 1))
    # The toy's layouts have one source.
    assert progress.compiled == LEGAL
    known = times(survey, parts)
    assert [times_s.keys() for times_s in known.times_s] == 4 * [{LIBRARY, *range(LEGAL)}]
    best = known.configs.index(("blocks", Config(BEST)))
    for times_s in known.times_s:
        assert times_s[best] == pytest.approx(BEST_S, rel=0.01)
        assert times_s[LIBRARY] == pytest.approx(2 * BEST_S, rel=0.01)
    assert all(timing.noise < 0.05 for part in parts for timing in part.timings)
    assert set(known.registers.tolist()) == {32.0}


def test_a_fault_costs_its_config_and_not_the_survey(tmp_path: Path) -> None:
    """What the device was told ahead is timed though the worker before it crashed, and nothing twice."""
    faults = {name: config for name, config in fault_configs().items() if name in FAULTS_SEEN}
    rules = [rule(BEST, latency_s=BEST_S), *(rule(config, fault=name) for name, config in faults.items())]
    spec = write_device(tmp_path / "device.json", rules=rules, baseline_s=2 * BEST_S)
    survey = request(spec, (1000,), configs=LEGAL, per_problem=LEGAL)
    progress, parts = surveyed(tmp_path, survey)
    outcomes = [
        (part.problems[timing.problem], tuple(part.configs[timing.config].config.items()), timing.outcome)
        for part in parts
        for timing in part.timings
        if timing.config != LIBRARY
    ]
    first = {config: outcome for problem, config, outcome in outcomes if problem.layout == "plain"}
    assert {name: first[tuple(config.items())] for name, config in faults.items()} == FAULTS_SEEN
    assert len({timed[:2] for timed in outcomes}) == len(outcomes) == 2 * LEGAL
    sound = {outcome for _, config, outcome in outcomes if dict(config) not in faults.values()}
    assert sound <= {Outcome.MEASURED, Outcome.PRUNED}
    assert progress.timings == 2 * LEGAL + 2


def test_a_survey_goes_on_where_it_ended(tmp_path: Path, device: str) -> None:
    survey = request(device, configs=5)
    first, _ = surveyed(tmp_path, replace(survey, problems=survey.problems[:1]))
    second, parts = surveyed(tmp_path, survey)
    third, _ = surveyed(tmp_path, survey)
    assert (first.problems, second.problems, third.problems) == (1, 3, 0)
    assert (second.before, third.before) == (1, 4)
    assert len(times(survey, parts).problems) == 4


def test_problems_are_drawn_until_the_time_is_up(tmp_path: Path, device: str) -> None:
    survey = request(device, (), drawn=True, configs=6, seconds=4.0)
    survey = replace(survey, ranges=Ranges(most={"n": 5000}))
    progress, parts = surveyed(tmp_path, survey)
    known = times(survey, parts)
    assert progress.problems == len(known.problems) > 8
    assert {problem.layout for problem in known.problems} == {"plain", "same"}
    assert max(problem.dims["n"] for problem in known.problems) <= 5000
    alone = sum(times_s.keys() == {LIBRARY} for times_s in known.times_s)
    assert 0.2 < alone / len(known.problems) < 0.6, "the library is timed at more problems than configs are"


def test_problems_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    spec = write_device(tmp_path / "device.json", free_bytes=10_000_000)
    progress, _ = surveyed(tmp_path, request(spec, (1000, 10_000_000), configs=3))
    assert (progress.problems, progress.skipped) == (2, 2)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_survey_that_is_killed_or_interrupted_keeps_what_it_stored(
    tmp_path: Path, device: str, number: signal.Signals, code: int
) -> None:
    process = start(
        "survey", str(TOY), "--device", device, "--seconds", "60", "--configs", "6", "--most", "n=3000", "--db",
        database(tmp_path),
    )  # fmt: skip
    eventually(lambda: _stored(tmp_path), 50)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert _stored(tmp_path) >= 1


def _stored(folder: Path) -> int:
    try:
        with Store.open(database(folder), read_only=True) as store:
            return len(store.survey_parts("toy", "Fake board", "cold"))
    except NothingFound:
        return 0


def test_the_command_tells_what_it_did_or_why_not(
    tmp_path: Path, device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(f'[[problems]]\nfile = "{TOY}"\noperation = "toy"\nn = [100, 2000]\n')
    command = [
        "survey", str(TOY), "--device", device, "--shapes", str(plan), "--only-shapes", "--configs", "4",
        "--db", database(tmp_path),
    ]  # fmt: skip
    assert run([*command, "--json"]) == 0
    out, err = capsys.readouterr()
    assert (json.loads(out)["problems"], json.loads(out)["timings"]) == (2, 10)
    assert "a model needs configs timed at 20 problems, got 2" in err
    assert run(command) == 0
    assert "before" in capsys.readouterr().out


@pytest.mark.parametrize(("more", "said"), [
    (["--seconds", "0"], "a number above 0"),
    (["--most", "m=9"], "--most is DIM=SIZE with one of n"),
    (["--only-shapes"], "goes with --shapes"),
    (["--layout", "diagonal"], "diagonal"),
])  # fmt: skip
def test_mistakes_are_told(
    tmp_path: Path, device: str, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert run(["survey", str(TOY), "--device", device, "--db", database(tmp_path), *more]) == 2
    assert said in capsys.readouterr().err


def test_a_survey_of_the_cpu(tmp_path: Path) -> None:
    survey = request("cpu", (500,), configs=2)
    progress, parts = surveyed(tmp_path, survey)
    assert progress.problems == 2
    assert set(progress.outcomes) <= {"MEASURED", "PRUNED"}
    assert all(min(times_s.values()) > 0 for times_s in times(survey, parts).times_s)


def test_timings_of_other_sources_are_left_out_and_the_last_of_a_config_counts(device: str) -> None:
    survey = request(device)
    (kernel,), problem = survey.kernels, ProblemKey.of(survey.problems[0])
    config = {"BLOCK": 64, "UNROLL": 1}
    configs = tuple(
        SurveyConfig(kernel.name, source, "", 0, config) for source in ("before", kernel.source_hash)
    )
    parts = [
        SurveyPart(
            survey.device.info, "toy", "cold", (problem,), configs,
            tuple(Timing(0, at, Outcome.MEASURED, time_s) for at in (LIBRARY, 0, 1)),
        )
        for time_s in (1.0, 2.0)
    ]  # fmt: skip
    known = times(survey, parts)
    assert known.times_s == [{LIBRARY: 2.0, 0: 2.0}]
    failed = replace(parts[0], timings=(Timing(0, LIBRARY, Outcome.CRASHED),))
    assert times(survey, [*parts, failed]).times_s == [{0: 2.0}]
    assert known.provenance["parts"] == 2


@pytest.mark.usefixtures("few_trees")
def test_a_survey_ends_with_a_model(tmp_path: Path, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "survey", str(TOY), "--device", device, "--seconds", "10", "--most", "n=50000", "--db",
        database(tmp_path),
    ]  # fmt: skip
    assert run(command) == 0
    assert "a model was fitted" in capsys.readouterr().err
    with Store.open(database(tmp_path), read_only=True) as store:
        known = models("toy", store=store)
        assert [model.device.name for model in known] == ["Fake board"]
        survey = request(device)
        [kernel] = survey.kernels
        best = Predictor(known[0], {kernel.name: kernel}).answer(survey.problems[0]).best
    assert dict(best.config) == BEST
    # The next study starts from it, and so does a survey without timings of its own.
    with Store.open(database(tmp_path)) as store:
        info = known[0].device
        assert Predictions(survey.problems[0], survey.kernels, info, "cold", store).starts[0][1] == best.config
    with Store.open(f"sqlite:///{tmp_path}/of-a-model.db") as store:
        watched.add_model(store, "toy", info.name, "cold", to_bytes(known[0]))
        made = design(survey, store, info)
        turn = made.turn(0, survey.problems[0], 1)
        assert made.pool.configs[turn.configs[0]] == ("blocks", best.config)
