"""Fixtures of the tests of callables."""

from __future__ import annotations

import pytest
from fixtures.callable_records import empty_database, own_records, ran
from fixtures.fake_gpu import Log, install

from tuner.python import calls, functions

__all__ = ["empty_database", "own_records", "ran"]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Log:
    """A GPU that is made of the host's memory; what it was asked for."""
    monkeypatch.setattr(functions, "_key_of", dict(functions._key_of))
    calls.device_info.cache_clear()
    return install(monkeypatch)
