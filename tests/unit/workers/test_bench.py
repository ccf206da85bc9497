"""One config after the other on a bench; failures become outcomes. On the fake device, in this process."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_device import BEST, BEST_S, BOARD, TOY, fault_configs, rule
from tuner.devices.fake.device import FakeCompiler, FakeDevice

from tuner.declare import catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Rendered, render
from tuner.declare.launch import Launch
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.results.measurement import CompileReport, Outcome
from tuner.workers import compile_pool
from tuner.workers.bench import Bench, CompiledConfig
from tuner.workers.compile_pool import ruled_out
from tuner.workers.workload import Workload

CATALOGUE = catalogue.from_file(TOY)
PROBLEM = CATALOGUE.operation("toy").problem({"n": 300})
SLOW = {"BLOCK": 64, "ITEMS": 16, "ORDER": "striped"}


class Room:
    """A fake device with a bench on it."""

    def __init__(self, folder: Path, **more: Any) -> None:
        rules = [
            rule(BEST, latency_s=BEST_S, traits={"occupancy": 0.5}),
            rule(SLOW, latency_s=5 * BEST_S, traits={"occupancy": 0.25}),
        ]
        rules += [rule(config, fault=fault) for fault, config in fault_configs().items()]
        path = folder / "device.json"
        path.write_text(json.dumps({"info": BOARD, "rules": rules, "noise": 0.0001} | more))
        self.compiler = FakeCompiler(str(path))
        device = FakeDevice.from_file(str(path))
        self.bench = Bench(device, Workload(device, PROBLEM, 1), "cold")

    def compiled_config(self, config: dict[str, Any], problem: Problem = PROBLEM) -> CompiledConfig:
        rendered = render(CATALOGUE.of("toy", "cuda")[0], problem, Config(config))
        binary = self.compiler.compile(rendered, "", problem)
        return CompiledConfig(rendered, binary.code, binary.report, compile_s=1.5)


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path, baseline_s=2 * BEST_S)


def test_a_good_config_is_measured_with_all_that_is_known(room: Room) -> None:
    compiled_config = room.compiled_config(BEST)
    found = room.bench.measure(compiled_config, None)
    assert found.outcome is Outcome.MEASURED
    assert found.reason == ""
    assert found.time_s == pytest.approx(BEST_S, rel=1e-3)
    assert found.error.bound_ratio < 1
    assert found.compiled == compiled_config.compiled
    assert list(found.stages_s) == ["compile", "load", "verify", "time", "bits"]
    assert found.stages_s["compile"] == 1.5
    assert found.circumstances == {"sm_clock_hz": 1e9, "occupancy": 0.5}
    assert not room.bench.unwell


#: A board of 10 multiprocessors writes at most 9 TB/s, and computes 573 Tflop/s in float32.
SMALL_BOARD = {"sm_count": 10}


@pytest.mark.parametrize(("sample", "n", "reason"), [
    ("0", 300, "a run takes 5e-08 s or more, and ends, got 0 s"),
    ("-1e-3", 300, "a run takes 5e-08 s or more, and ends, got -0.001 s"),
    ("nan", 300, "a run takes 5e-08 s or more, and ends, got nan s"),
    ("inf", 300, "a run takes 5e-08 s or more, and ends, got inf s"),
    ("2.26e-8", 300, "a run takes 5e-08 s or more, and ends, got 2.26e-08 s"),
    ("6e-8", 10**6, "4e+06 bytes in 6e-08 s are 6.67e+13 bytes/s, and Fake board does at most 8.96e+12"),
])  # fmt: skip
@pytest.mark.parametrize("at", [0, 5])
def test_an_impossible_time_is_wrong(tmp_path: Path, sample: str, n: int, reason: str, at: int) -> None:
    samples = [str(BEST_S * (1 + number / 10)) for number in range(at)] + [sample]
    room = Room(tmp_path, rules=[rule(BEST, samples_s=samples)], info=BOARD | SMALL_BOARD)
    problem = CATALOGUE.operation("toy").problem({"n": n})
    bench = Bench(room.bench.device, Workload(room.bench.device, problem, 1), "cold")
    found = bench.measure(room.compiled_config(BEST, problem), None)
    assert found.outcome is Outcome.WRONG_RESULT
    assert found.reason == f"its time cannot be: {reason}"
    assert found.samples_s == ()
    assert bench.unwell


def test_the_library_plays_with_its_default_of_threads_and_with_those_of_the_finalists(tmp_path: Path) -> None:
    bench = Room(tmp_path, baseline_s={"1": 4e-3, "2": 3e-3, "8": 2e-3})
    found = bench.bench.finals([bench.compiled_config(BEST)], 0.0, (1, 2, 4, 8))[1:]
    assert [(each.circumstances["threads"], each.time_s) for each in found] == [
        (8, pytest.approx(2e-3, rel=1e-3)),
        (1, pytest.approx(4e-3, rel=1e-3)),
        (2, pytest.approx(3e-3, rel=1e-3)),
    ]
    alone = bench.bench.measure_baseline()
    assert alone.circumstances["threads"] == 8


def test_finals_without_time_check_two_and_say_so_of_the_others(tmp_path: Path) -> None:
    configs = [BEST, SLOW, {**BEST, "ITEMS": 2}, {**BEST, "ITEMS": 8}]
    room = Room(tmp_path, rules=[rule({}, latency_s=BEST_S, first_s=0.01)], baseline_s=BEST_S)
    found = room.bench.finals([room.compiled_config(config) for config in configs], 0.01)
    assert [each.outcome.value for each in found] == ["MEASURED", "MEASURED", "PRUNED", "PRUNED", "MEASURED"]
    assert found[2].reason == "the finals had no time to check it"


@pytest.mark.parametrize("regime", ["cold", "hot", "cold-graph", "hot-graph"])
@pytest.mark.parametrize("runs", [1, 5])
@pytest.mark.parametrize(("fault", "reason"), [
    ("stale", "in a timed run: returned a stale result"),
    ("unwritten", "in a timed run: (left elements unwritten|.* of 32 elements at random places are wrong)"),
    ("writes_input", "wrote into the input x"),
])  # fmt: skip
def test_cheats_in_timed_runs_fail(tmp_path: Path, regime: str, runs: int, fault: str, reason: str) -> None:
    # From run number `runs` on: the one that verifies is number 0, then come ten or more that are timed.
    room = Room(tmp_path, rules=[rule(BEST, latency_s=1e-7, fault=fault, after=runs)], noise=0.1)
    room.bench.regime = regime
    found = room.bench.measure(room.compiled_config(BEST), None)
    if found.outcome is Outcome.MEASURED:
        # It cheated after the run that was checked. The finals have other inputs, and check after all rounds.
        assert runs > 1
        [found] = room.bench.finals([room.compiled_config(BEST)], 5.0)
    assert found.outcome is Outcome.WRONG_RESULT
    assert re.search(reason.removeprefix("in a timed run: "), found.reason)
    assert found.samples_s == ()


def test_a_first_run_far_above_the_best_is_the_only_one(tmp_path: Path) -> None:
    room = Room(tmp_path, rules=[rule(SLOW, latency_s=5 * BEST_S, first_s=0.3)])
    found = room.bench.measure(room.compiled_config(SLOW), BEST_S)
    assert found.outcome is Outcome.PRUNED
    assert found.reason.startswith("cannot win: its first run takes ")
    (sample_s,) = found.samples_s
    assert sample_s >= 0.3
    assert found.error is not None


@pytest.mark.parametrize(
    ("energy", "watts", "joules"),
    [(True, 100.0, [300.0, 400.0]), (True, None, [300.0, None]), (False, 100.0, [None, None])],
)
def test_energy_is_power_times_time_where_it_is_asked_for(
    tmp_path: Path, energy: bool, watts: float | None, joules: list[float | None]
) -> None:
    rules = [rule(BEST, latency_s=BEST_S, power_w=300.0)]
    room = Room(tmp_path, rules=rules, noise=0.0, baseline_s=4 * BEST_S, power_w=watts)
    room.bench.energy = energy
    found, library = room.bench.measure(room.compiled_config(BEST), None), room.bench.measure_baseline()
    assert library is not None
    assert [one.circumstances.get("energy_j") for one in (found, library)] == [
        watt and pytest.approx(watt * BEST_S) for watt in joules
    ]


# --- What the compiler's report rules out

DEVICE = DeviceInfo.from_json(BOARD)


@pytest.mark.parametrize(("block", "report", "outcome", "reason"), [
    ((1024,), {"registers": 64}, None, ""),
    ((1024,), {"registers": 65}, Outcome.LAUNCH_FAILED, "a block has at most 65536 registers"),
    ((64,), {"spill_bytes": compile_pool.MAX_SPILL_BYTES}, None, ""),
    ((64,), {"spill_bytes": 516}, Outcome.PRUNED, "spills 516 bytes a thread"),
    (None, {"spill_bytes": 10**6, "registers": 10**6}, None, ""),
])  # fmt: skip
def test_the_compilers_report_rules_out_what_cannot_launch_or_win(
    block: tuple[int, ...] | None, report: dict[str, int], outcome: Outcome | None, reason: str
) -> None:
    source = Rendered("", "toy", "cuda", Launch((1,), block) if block else None)
    refused = ruled_out(CompiledConfig(source, b"", CompileReport(**report), 0.25), DEVICE)
    assert (refused and refused.outcome) == outcome
    if refused is not None:
        assert reason in refused.reason
        assert refused.stages_s == {"compile": 0.25}
