"""The fake device does what its file says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_device import BOARD, TOY

from tuner.declare import catalogue
from tuner.declare.kernel import Rendered, render
from tuner.declare.space import Config
from tuner.devices.fake.device import FakeDevice, read_info
from tuner.errors import DeviceTrouble
from tuner.workers.workload import Workload

CATALOGUE = catalogue.from_file(TOY)
PROBLEM = CATALOGUE.operation("toy").problem({"n": 10})


def of(target: str, **config: Any) -> Rendered:
    return render(CATALOGUE.of("toy", target)[0], PROBLEM, Config(config))


def latency(data: dict[str, Any], rendered: Rendered) -> float:
    """The median of samples without noise."""
    device = FakeDevice({"info": BOARD, "noise": 0, **data})
    run = device.load(rendered, rendered.text.encode(), Workload(device, PROBLEM, 1))
    return device.samples_s(run, 1, "cold")[0]


def test_the_first_rule_that_fits_counts() -> None:
    rules = [
        {"where": {"CHUNK": 64, "FUSED": True}, "latency_s": 1.0},
        {"where": {"CHUNK": 64}, "latency_s": 2.0},
        {"latency_s": 3.0},
    ]
    assert latency({"rules": rules}, of("cpu", CHUNK=64, FUSED=True)) == 1.0
    assert latency({"rules": rules}, of("cpu", CHUNK=64, FUSED=False)) == 2.0
    assert latency({"rules": rules}, of("cpu", CHUNK=128, FUSED=True)) == 3.0


def test_a_landscape_gives_every_config_a_latency_of_its_own() -> None:
    times = [
        latency({"landscape_seed": 1, "base_s": 1e-3}, of("cuda", BLOCK=block, ITEMS=items, ORDER="striped"))
        for block in (32, 64, 128, 256)
        for items in (1, 2, 4)
    ]
    assert len(set(times)) == 12
    assert all(1e-3 <= time_s <= 1e-2 for time_s in times)
    again = {"landscape_seed": 1, "base_s": 1e-3}
    assert latency(again, of("cuda", BLOCK=32, ITEMS=1, ORDER="striped")) == times[0]
    assert latency({**again, "landscape_seed": 2}, of("cuda", BLOCK=32, ITEMS=1, ORDER="striped")) != times[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no JSON", "cannot read"),
        ("{}", "has the key info"),
        ('{"rules": []}', "has the key info"),
        ("[]", "info"),
    ],
)
def test_a_file_that_is_none_is_told(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "device.json"
    path.write_text(text)
    with pytest.raises(DeviceTrouble, match=message):
        read_info(str(path))
