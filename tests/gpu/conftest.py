"""Tests in this folder need a GPU; where there is none they are skipped, and say so."""

from pathlib import Path

import pytest

from tuner.devices.detect import gpus
from tuner.devices.protocol import Device

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what lies in this folder; every other test is left alone."""
    if gpus():
        return
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU and its driver, found none"))


@pytest.fixture(scope="session")
def device() -> Device:
    from tuner.devices.cuda.device import CudaDevice

    return CudaDevice()


@pytest.fixture
def hopper(device: Device) -> None:
    if device.info.compute_capability != 90:
        pytest.skip(f"needs sm_90, got {device.info.name}")
