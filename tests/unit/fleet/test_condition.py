"""What a worker says of its device before it gets work."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.fake_device import write_device

from tuner.devices.detect import find
from tuner.fleet.device_plugin import condition_of


def test_a_device_that_is_well_is_told_as_it_was_opened(here: Path) -> None:
    found = condition_of(find(write_device(here / "device.json")))
    assert found.complaints == ()
    assert found.info.uuid == "FAKE-1"
    assert found.versions["compiler"] == "fake 1"


@pytest.mark.parametrize(
    ("device", "told"),
    [
        ({"dead": True}, "its canary fails: the device is unwell (fake)"),
        ({"machine": {"throttle_reasons": 0x08}}, "its clocks are lowered: hardware slowdown"),
        ({"machine": {"throttle_reasons": 0x60}}, "its clocks are lowered: heat"),
        ({"machine": {"others_processes": 2.0}}, "2 other processes"),
    ],
)
def test_a_device_that_is_not_fit_is_told_with_the_reason(
    here: Path, device: dict[str, object], told: str
) -> None:
    found = condition_of(find(write_device(here / "device.json", **device)))
    (complaint,) = found.complaints
    assert told in complaint


def test_a_cpu_that_others_use_may_take_part(here: Path) -> None:
    spec = write_device(here / "device.json", info={"kind": "cpu"}, machine={"others_cores": 3.0})
    assert condition_of(find(spec)).complaints == ()
