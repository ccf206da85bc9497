"""Fixtures of the tests of callables."""

import pytest
from fixtures.fake_gpu import CupyArray, Log, TorchTensor, install

from tuner.python import arrays, decisions


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Log:
    """A GPU that is made of the host's memory; what it was asked for."""
    for kind in (CupyArray, TorchTensor):
        arrays.KEY_OF.pop(kind, None)
    decisions.device_info.cache_clear()
    return install(monkeypatch)
