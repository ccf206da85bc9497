"""What the tests of kernels share."""

import shutil
import sys
from pathlib import Path

import pytest
from fences import Build, Compiled, loaded

from tuner.declare.kernel import Kernel, render
from tuner.declare.problem import Problem
from tuner.declare.space import Config


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Where CUDA kernels compiled for the CPU are kept while the tests run, for all processes of the run."""
    if shutil.which("g++") is None:
        pytest.skip("running CUDA kernels on the CPU needs g++")
    base = tmp_path_factory.getbasetemp()
    shared = (base if worker_id == "master" else base.parent) / "cuda_on_cpu"
    shared.mkdir(exist_ok=True)
    return shared


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Renders a CPU kernel and imports it as a module, once for equal text."""
    folder = tmp_path_factory.mktemp("rendered")

    def build(kernel: Kernel, problem: Problem, config: Config) -> Compiled:
        rendered = render(kernel, problem, config)
        name = f"kernel_{rendered.hash}"
        if name not in sys.modules:
            path = folder / f"{name}.py"
            path.write_text(rendered.text, encoding="utf-8")
            loaded(path)
        return getattr(sys.modules[name], rendered.entry)

    return build
