"""Kernels that only seem to compute, real faults, results whose bits differ, and kernels that are dropped."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fixtures.callable_records import crowned
from fixtures.fake_device import BEST, BEST_S, LEGAL, database, request, rule, stored, study, write_device
from fixtures.fake_gpu import H200

from tuner.cli.formatting import answer_rows
from tuner.declare import catalogue
from tuner.declare.catalogue import builtin
from tuner.declare.kernel import Kernel
from tuner.declare.space import Config, choice
from tuner.devices.detect import find
from tuner.errors import InputError
from tuner.lookup import Answer
from tuner.lookup.asking import opened
from tuner.results.measurement import Measurement, Outcome
from tuner.results.objectives import read_bits
from tuner.results.record import VERIFICATION, Role
from tuner.store import Store
from tuner.store.published import publish
from tuner.study import session
from tuner.study.leaderboard import HOPELESS, Leaderboard
from tuner.study.requests import StudyRequest
from tuner.study.study import run_study, with_plain_answers
from tuner.workers import compile_pool, device_worker
from tuner.workers.process import MEMORY_VARIABLE

CHEATING = Path(__file__).parents[2] / "fixtures" / "cheating_cpu.py"
HONEST = {"none", "also_none"}
#: Cheat -> why it is wrong. Those of `BY_STATE` look at what a timed run finds, which differs by regime.
REASONS = {
    "zeroes": "^wrote into the input x, which kernels only read$",
    "writes": "^wrote into the input x, which kernels only read$",
    "remembers": "^in a timed run: ", "returns": "^in a timed run: ",
    # Right over NaN alone; takes a number for a result; out of bounds beside a result.
    "fmax": ".", "beyond": ".",
    # The check before the timed runs tells it over some poisons, a timed run over the others.
    "is_there": "where y held|in a timed run: left elements unwritten",
    # A spoilt clock tells times that no core reaches, or that are not those of the study's.
    "clock": "^its time cannot be: ", "slow_clock": "^its clock says ",
}  # fmt: skip
BY_STATE = ("none", "remembers", "returns", "glances", "tenth", "also_none")


@pytest.mark.parametrize(("regime", "cheats"), [("cold", BY_STATE), ("hot", (*REASONS, *BY_STATE))])
def test_kernels_that_seem_to_compute_are_wrong(store: Store, regime: str, cheats: Sequence[str]) -> None:
    declared = catalogue.from_file(CHEATING)
    (kernel,) = declared.of("cheating_cpu")
    kernel = replace(
        kernel, parameters=(choice("CHEAT", *dict.fromkeys(cheats)),), starts=({"CHEAT": cheats[0]},)
    )
    problem = declared.operation("cheating_cpu").problem({"n": 100_000})
    # With a second objective no config is stopped early, however slow a busy machine makes its first runs: each
    # is timed to the end, and so is checked.
    asked = StudyRequest(
        problem, [kernel], (find("cpu"),), regime, seconds=None, seed=1, sampler="random",
        objectives=("time", "error"), finals_s=0.5,
    )  # fmt: skip
    result = run_study(asked, store)
    trials = [record for record in store.records() if record.role is Role.TRIAL]
    found = {record.config["CHEAT"]: record.measurement for record in trials}
    assert set(found) == set(cheats)
    reasons = {cheat: each.reason for cheat, each in found.items() if each.outcome is Outcome.WRONG_RESULT}
    for cheat in REASONS.keys() & found:
        assert re.search(REASONS[cheat], reasons.pop(cheat)), cheat
    # Garbage in every tenth call may miss the runs that are compared, until the finals. Where inputs are placed
    # anew, one that looks whether they are computes unless they are the same again.
    assert {"glances"} - ({"glances"} if regime == "cold" else set()) <= set(reasons) <= {"glances", "tenth"}
    assert {found[each].outcome for each in HONEST} == {Outcome.MEASURED}
    assert result.champion.record.config["CHEAT"] in HONEST | ({"glances"} if regime == "cold" else set())


# --- finalists that turn out wrong ---------------------------------------------------------------------------

#: On the fake board nothing else comes near: beside it others are stopped early, or too slow for the finals.
BOGUS, BOGUS_S = {"BLOCK": 64, "ITEMS": 4, "ORDER": "striped"}, BEST_S / 50


def bogus_device(path: Path, **how: Any) -> str:
    """A device on which `BOGUS` seems to be the fastest, and `BEST` is."""
    return write_device(path, rules=[rule(BOGUS, latency_s=BOGUS_S, **how), rule(BEST, latency_s=BEST_S)])


@pytest.mark.parametrize(("how", "reason"), [
    ({"fault": "wrong_result", "only_at": 1}, "at toy 1 float32 plain: largest error"),
    ({"fault": "stale", "after": 60}, "returned a stale result"),
    ({"fault": "writes_input", "after": 60}, "wrote into the input x"),
])  # fmt: skip
def test_a_wrong_best_leaves_the_next_one(tmp_path: Path, how: Mapping[str, Any], reason: str) -> None:
    device = bogus_device(tmp_path / "device.json", **how)
    result = study(tmp_path, device)
    assert dict(result.champion.record.config) == BEST
    assert result.champion.verdict == "first"
    trials = {tuple(each.config.values()): each.measurement for each in stored(tmp_path)}
    assert trials[tuple(BOGUS.values())].outcome is Outcome.MEASURED
    finals = [each.measurement for each in stored(tmp_path, Role.FINAL) if dict(each.config) == BOGUS]
    assert [each.outcome for each in finals] == [Outcome.WRONG_RESULT]
    assert reason in finals[0].reason


def test_a_champion_that_reigns_meets_the_next_best_where_the_best_turns_out_wrong(tmp_path: Path) -> None:
    first = study(tmp_path, write_device(tmp_path / "device.json", rules=[]), trials=1)
    slow = dict(first.champion.record.config)
    assert slow not in (BOGUS, BEST)
    rules = [
        rule(BOGUS, latency_s=BOGUS_S, fault="stale", after=60), rule(BEST, latency_s=BEST_S),
        rule(slow, latency_s=4 * BEST_S),
    ]  # fmt: skip
    again = study(tmp_path, write_device(tmp_path / "device.json", rules=rules))
    assert dict(again.champion.record.config) == BEST
    assert again.champion.verdict == "faster"


def test_finals_without_time_go_on_until_a_config_is_right(tmp_path: Path) -> None:
    device = bogus_device(tmp_path / "device.json", fault="wrong_result", only_at=1)
    result = study(tmp_path, device, finals_s=0.0)
    assert result.champion is not None
    assert dict(result.champion.record.config) == BEST


def test_what_older_rules_judged_is_judged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # By these BEST was wrong, as it had another's inputs, and a config that computes nothing is the champion.
    rules = [rule(BEST, fault="wrong_result"), rule(BOGUS, latency_s=BOGUS_S)]
    with monkeypatch.context() as older:
        older.setattr(session, "VERIFICATION", VERIFICATION - 1)
        bogus = study(tmp_path, write_device(tmp_path / "device.json", rules=rules))
    assert dict(bogus.champion.record.config) == BOGUS
    device = bogus_device(tmp_path / "device.json", fault="writes_input")
    result = study(tmp_path, device)
    assert dict(result.champion.record.config) == BEST
    assert result.champion.verdict == "first"
    assert result.progress.outcomes["WRONG_RESULT"] == 1


# --- real faults on this CPU ----------------------------------------


FAULTY = Path(__file__).parents[2] / "fixtures" / "faulty_cpu.py"
#: What workers may take here: enough for what is sound, and soon used up.
SCANT_BYTES = 256 << 20
ENDS = {
    "none": ("MEASURED", ""),
    "segfault": ("CRASHED", "SIGSEGV"),
    "endless": ("TIMED_OUT", "in time"),
    "hog": ("LAUNCH_FAILED", "out of memory: Unable to allocate 8.00 MiB"),
    "explode": ("COMPILE_FAILED", "out of memory"),
    "wrong": ("WRONG_RESULT", "times what rounding explains"),
}


def test_real_faults_are_outcomes_and_sound_ones_win(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_worker, "FIRST_LIMIT_FLOOR_S", 6.0)
    monkeypatch.setattr(compile_pool, "MEMORY_BYTES", SCANT_BYTES)
    declared = catalogue.from_file(FAULTY)
    problem = declared.operation("faulty_cpu").problem({"n": 100_000})
    scant = replace(find("cpu"), environment=((MEMORY_VARIABLE, str(SCANT_BYTES)),))
    asked = StudyRequest(
        problem, declared.of("faulty_cpu"), (scant,), "hot", seconds=None, seed=1, sampler="random",
        finals_s=0.5,
    )  # fmt: skip
    result = run_study(asked, store)
    trials = [record for record in store.records() if record.role is Role.TRIAL]
    found = {record.config["FAULT"]: record.measurement for record in trials}
    assert len(trials) == len(found)
    for fault, (outcome, reason) in ENDS.items():
        assert (found[fault].outcome.value, reason in found[fault].reason) == (outcome, True), found[fault]
    assert dict(result.champion.record.config) == {"FAULT": "none"}


#: Width of the CPU's vectors -> an older core type, and the one that suits it.
CORE_TYPES = {64: ("Haswell", "SkylakeX"), 32: ("Nehalem", "Haswell")}


def test_a_blas_that_mistakes_the_cpu_is_measured_as_what_it_is_too(tmp_path: Path, store: Store) -> None:
    cpu = find("cpu")
    if cpu.info.vector_bytes not in CORE_TYPES:
        pytest.skip("OpenBLAS has one core type for this CPU")
    older, best = CORE_TYPES[cpu.info.vector_bytes]
    mistaken = replace(cpu, environment=(("OPENBLAS_CORETYPE", older),))
    asked = request("cpu", found=(mistaken,), regime="hot", trials=1, finals_s=0.1)
    result = run_study(asked, store)
    first, own, last = stored(tmp_path, Role.BASELINE)
    # Before the search with either, then with its own choice in the finals.
    assert [each.versions["blas_core_type"] for each in (first, own, last)] == [older, best, older]
    assert result.progress.baseline_s == min(first.measurement.time_s or 9, own.measurement.time_s or 9)
    assert {each.versions["blas_threads"] for each in (first, own, last)} == {
        str(int(each.measurement.circumstances["threads"])) for each in (first, own, last)
    }
    assert result.champion.baseline == last


# --- classes of bits ----------------------------------------


DECLARED = """
from pathlib import Path
from tuner import Kernel, Operation, Source, Tensor, Work, choice

OPERATION = Operation(
    name="sums", dims=("n",),
    tensors=lambda p: (Tensor("x", (p.n, 3), p.dtype), Tensor("y", (p.n,), p.dtype, output=True)),
    work=lambda p: Work(flops=2.0 * p.n, bytes=16.0 * p.n),
    reference=lambda xp, p, arrays: arrays["x"].astype(xp.float64).sum(axis=1), terms=lambda p: 3,
)
KERNEL = Kernel(
    operation="sums", name="plain", target="cpu", source=Source(Path("sums.numba.py")), idea="adds in an order",
    parameters=(choice("ORDER", "up", "again", "down", "turns"),), starts=({"ORDER": "up"},),
)
"""
SOURCE = """
RUNS = []


def sums(x, y, n):
    RUNS.append(0)
    down = ORDER == "down" or (ORDER == "turns" and len(RUNS) % 2)
    y[:] = (x[:, 2] + x[:, 1]) + x[:, 0] if down else (x[:, 0] + x[:, 1]) + x[:, 2]
"""
#: Slower than `BEST`, with other bits.
SAME = {"BLOCK": 128, "ITEMS": 1, "ORDER": "striped"}


def test_an_order_of_sums_is_a_class_and_what_varies_is_not_repeatable(tmp_path: Path, store: Store) -> None:
    (tmp_path / "sums.numba.py").write_text(SOURCE)
    (tmp_path / "sums.py").write_text(DECLARED)
    declared = catalogue.from_file(tmp_path / "sums.py")
    asked = StudyRequest(
        declared.operation("sums").problem({"n": 5000}), declared.of("sums"), (find("cpu"),), "hot",
        seconds=None, seed=1, sampler="bruteforce", objectives=("time", "error"), finals_s=0.2,
    )  # fmt: skip
    result = run_study(asked, store)
    found: dict[str, Measurement] = {
        str(trial.config["ORDER"]): trial.measurement for trial in store.records() if trial.role == "trial"
    }
    assert found["turns"].outcome is Outcome.NOT_REPEATABLE
    assert found["up"].bits == found["again"].bits != found["down"].bits
    assert len(result.progress.classes_s) == 2
    champion = result.champion
    assert champion.record.measurement.bits in result.progress.classes_s


def test_bits_that_vary_are_a_champions_only_where_a_study_allows_them(tmp_path: Path) -> None:
    rules = [rule(BEST, latency_s=BEST_S, error_rel=3e-7, fault="varies"), rule({}, latency_s=4 * BEST_S)]
    board = write_device(tmp_path / "device.json", rules=rules)
    crowned = [study(tmp_path, board, bits=bits).champion.record for bits in ("any", "")]
    assert [dict(record.config) == BEST for record in crowned] == [True, False]
    assert [record.measurement.bits == "varies" for record in crowned] == [True, False]


def test_a_study_keeps_to_a_class_and_another_champion_is_crowned_only_without_it(tmp_path: Path) -> None:
    rules = [rule(BEST, latency_s=BEST_S, error_rel=3e-7), rule(SAME, latency_s=1.2 * BEST_S, error_rel=1e-7)]
    rules.append(rule({}, latency_s=4 * BEST_S, error_rel=1.2e-7))
    board = write_device(
        tmp_path / "device.json", rules=rules, baseline_s=2 * BEST_S, baseline_error_rel=1.2e-7, noise=1e-4
    )
    crowned = []
    for more in ({"error_limit": 1.5}, {"bits": read_bits("keep")}, {}, {"bits": "library"}):
        result = study(tmp_path, board, **more)
        crowned.append((dict(result.champion.record.config), Answer(result.champion).to_json()))
    assert [config for config, _ in crowned[:3]] == [SAME, SAME, BEST]
    bits = [answer["bits"] for _, answer in crowned]
    assert bits[0] == bits[1]
    assert {answer["baseline"]["bits"] for _, answer in crowned} == {bits[3]}
    assert set(result.progress.classes_s) == set(bits)
    assert len(set(bits)) == 3
    assert any(name == "bits" and bits[0] in text for name, text in answer_rows(crowned[0][1]))
    # What was timed is kept as it is, and is no trial of another class in a study without one.
    assert {trial.measurement.bits for trial in stored(tmp_path)} - {""} == set(bits)
    with pytest.raises(InputError, match="keep, library, any or a class of 12 hexadecimal digits, got 'same'"):
        read_bits("same")


def test_a_published_champion_reigns_where_a_database_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It plays in the finals, and its class of bits is the one to keep."""
    rules = [rule(BEST, latency_s=BEST_S, error_rel=3e-7), rule(SAME, latency_s=1.2 * BEST_S, error_rel=1e-7)]
    rules.append(rule({}, latency_s=4 * BEST_S, error_rel=1.2e-7))
    board = write_device(
        tmp_path / "device.json", rules=rules, baseline_s=2 * BEST_S, baseline_error_rel=1.2e-7, noise=1e-4
    )
    study(tmp_path, board, error_limit=1.5)
    with Store.open(database(tmp_path)) as store:
        publish(store, tmp_path / "tuned", operation="toy")
    monkeypatch.setattr("tuner.store.published.tuned_folder", lambda: tmp_path / "tuned")
    for name, bits, config, verdict in (("kept", "keep", SAME, "same"), ("free", "", BEST, "faster")):
        (tmp_path / name).mkdir()
        champion = study(tmp_path / name, board, bits=read_bits(bits)).champion
        assert (dict(champion.record.config), champion.verdict) == (config, verdict)


# --- kernels that are dropped ----------------------------------------


@pytest.mark.parametrize(
    ("threads", "factor", "is_dropped"), [(16, 1.1, True), (16, 0.9, False), (1, 15.0, False)]
)
def test_a_kernel_of_slow_first_configs_is_dropped(threads: int, factor: float, is_dropped: bool) -> None:
    """Idle cores do not count against it."""
    fast, slow = (cast(Kernel, SimpleNamespace(name=name, threads="THREADS")) for name in ("fast", "slow"))
    board = Leaderboard(cores=16)
    board.add_trial(fast, Config({"THREADS": 16}), Measurement(Outcome.MEASURED, samples_s=(1.0,)))
    for number in range(2):
        assert board.hopeless() == {}
        pruned = Measurement(Outcome.PRUNED, "cannot win", samples_s=(factor * HOPELESS,))
        board.add_trial(slow, Config({"THREADS": threads, "X": number}), pruned)
    assert list(board.hopeless()) == ["slow"] * is_dropped
    assert not is_dropped or "--kernel slow" in board.hopeless()["slow"]


def test_a_study_tells_what_it_dropped_and_spends_its_trials_elsewhere(tmp_path: Path) -> None:
    rules = [rule({"SLOW": 1}, latency_s=200 * BEST_S), rule(BEST, latency_s=BEST_S)]
    spec = write_device(tmp_path / "device.json", rules=rules)
    # The toy, and the same under another name, which is 200 times slower.
    (toy,) = request(spec).kernels
    slow = replace(toy, name="slow", parameters=(*toy.parameters, choice("SLOW", 1)), starts=())
    result = study(tmp_path, spec, kernels=(toy, slow))
    tried = [each.kernel for each in stored(tmp_path)]
    assert tried.count("blocks") == LEGAL
    assert list(result.progress.dropped) == ["slow"]
    assert tried.count("slow") < LEGAL / 2
    assert result.champion.record.kernel == "blocks"


# --- Which plain kernel stands behind one that does not take every input

GEMM = builtin().operation("gemm")
(EMULATED,) = builtin().of("gemm", "cuda", ("emulated",))
(WARP_TILED,) = builtin().of("gemm", "cuda", ("warp_tiled",))
PROBLEM = GEMM.problem({"m": 516, "n": 508, "k": 524}, precision="emulated")


class Session:
    """Stands for a study's: compiles everything, and judges what it is told to."""

    def __init__(self, outcome: Outcome) -> None:
        self.problem, self.store = PROBLEM, opened()
        self.device, self.regime = H200, "cold"
        self.worker, self.outcome = SimpleNamespace(info=H200, finals=self.finals), outcome
        self.pool = SimpleNamespace(compile_all=dict)

    def finals(self, compiled: list[object], budget_s: float) -> list[Measurement]:
        return [Measurement(self.outcome, "") for _ in compiled]


def crown(**changes: Any) -> Config:
    config = Config({**WARP_TILED.default_config(), **changes})
    crowned("gemm", PROBLEM.dims, kernel="warp_tiled", device=H200, config=dict(config))
    return config


def behind(session: Session) -> str:
    (kernel,) = with_plain_answers(session, (EMULATED,))
    return kernel.falls_back_to(EMULATED.default_config())


@pytest.mark.usefixtures("own_records")
def test_the_champion_stands_behind_if_it_keeps_the_promise() -> None:
    config = crown(BM=64)
    named = " ".join(["warp_tiled", *(f"{name}={value}" for name, value in config.items())])
    assert behind(Session(Outcome.MEASURED)) == named


@pytest.mark.usefixtures("own_records")
@pytest.mark.parametrize(
    ("crowns", "outcome"),
    [({}, Outcome.INACCURATE), ({"PITCH": 4}, Outcome.MEASURED), (None, Outcome.MEASURED)],
    ids=["breaks the promise", "more than a launch", "no champion"],
)
def test_else_the_declared_one_does(crowns: dict[str, int] | None, outcome: Outcome) -> None:
    if crowns is not None:
        crown(**crowns)
    assert behind(Session(outcome)).startswith("double_sums ")
    assert with_plain_answers(Session(outcome), (WARP_TILED,)) == (WARP_TILED,)
