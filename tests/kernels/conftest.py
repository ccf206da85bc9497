"""What the tests of kernels share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where CUDA kernels compiled for the CPU are kept while the tests run."""
    if shutil.which("g++") is None:
        pytest.skip("running CUDA kernels on the CPU needs g++")
    return tmp_path_factory.mktemp("cuda_on_cpu")
