"""What a worker says of its device before it gets work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_device import write_device

from tuner.devices.detect import find
from tuner.fleet.device_plugin import condition_of


@pytest.mark.parametrize(
    ("device", "complaints"),
    [
        ({}, []),
        (
            {"info": {"kind": "cpu"}, "machine": {"others_cores": 3.0}},
            [],
        ),  # a CPU that others use may take part
        ({"dead": True}, ["its canary fails: the device is unwell (fake)"]),
        ({"machine": {"throttle_reasons": 0x08}}, ["its clocks are lowered: hardware slowdown"]),
        ({"machine": {"throttle_reasons": 0x60}}, ["its clocks are lowered: heat"]),
        ({"machine": {"others_processes": 2.0}}, ["2 other processes"]),
    ],
)
def test_a_device_that_is_not_fit_is_told_with_the_reason(
    here: Path, device: dict[str, Any], complaints: list[str]
) -> None:
    report = condition_of(find(write_device(here / "device.json", **device)))
    assert len(report.complaints) == len(complaints)
    assert all(wanted in text for wanted, text in zip(complaints, report.complaints, strict=True))
    assert report.info.uuid == "FAKE-1"
    assert report.versions["compiler"] == "fake 1"
