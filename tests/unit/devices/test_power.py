"""Power: keeping a device busy, and the energy of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fixtures.fake_device import BEST, BEST_S, BOARD, TOY, rule

from tuner.declare import catalogue
from tuner.declare.kernel import render
from tuner.declare.space import Config
from tuner.devices.fake.device import FakeCompiler, FakeDevice
from tuner.devices.protocol import keep_busy
from tuner.results.measurement import Measurement
from tuner.workers.bench import Bench, CompiledConfig
from tuner.workers.workload import Workload


def test_a_device_is_kept_busy_in_batches() -> None:
    runs, waits = [], []
    batch = keep_busy(lambda: runs.append(1), lambda: waits.append(len(runs)), seconds=0.05)
    assert waits[-1] == len(runs)
    assert waits[-1] - waits[-2] in (batch, batch // 2)
    assert batch > 1


def measured(folder: Path, energy: bool, **device: float) -> tuple[Measurement, Measurement, Measurement]:
    """The best config, another, and the library."""
    path, other = folder / "device.json", {**BEST, "ORDER": "blocked"}
    rules = [rule(BEST, latency_s=BEST_S, power_w=300.0), rule(other, latency_s=2 * BEST_S)]
    data = {"info": BOARD, "rules": rules, "noise": 0.0, "baseline_s": 4 * BEST_S, **device}
    path.write_text(json.dumps(data))
    found = FakeDevice.from_file(str(path))
    toy = catalogue.from_file(TOY)
    problem = toy.operation("toy").problem({"n": 300})
    bench = Bench(found, Workload(found, problem, 1), "cold", energy)
    measurements = []
    for config in (BEST, other):
        rendered = render(toy.of("toy", "cuda")[0], problem, Config(config))
        binary = FakeCompiler(str(path)).compile(rendered, "", problem)
        measurements.append(bench.measure(CompiledConfig(rendered, binary.code, binary.report), None))
    library = bench.measure_baseline()
    assert library is not None
    return measurements[0], measurements[1], library


def test_energy_is_power_times_time_where_it_is_asked_for(tmp_path: Path) -> None:
    best, other, library = measured(tmp_path, True, power_w=100.0)
    assert best.circumstances["power_w"] == 300.0
    assert best.circumstances["energy_j"] == pytest.approx(300.0 * BEST_S)
    assert other.circumstances["energy_j"] == pytest.approx(100.0 * 2 * BEST_S)
    assert library.circumstances["energy_j"] == pytest.approx(100.0 * 4 * BEST_S)
    assert "power" in best.stages_s


def test_no_energy_where_nobody_asks_or_the_device_is_silent(tmp_path: Path) -> None:
    assert all("energy_j" not in each.circumstances for each in measured(tmp_path, False, power_w=100.0))
    best, other, library = measured(tmp_path, True)
    assert "energy_j" in best.circumstances
    assert "energy_j" not in other.circumstances
    assert "energy_j" not in library.circumstances
