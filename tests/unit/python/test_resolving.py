"""What `tuner.tune` is about: declared kernels and operations, and what belongs to which."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fixtures.fake_device import ROOT, TOY, write_device
from fixtures.own_kernels import double

import tuner
from tuner.declare.catalogue import builtin
from tuner.errors import DeclarationError, InputError, UnknownName
from tuner.python.tuning import resolved


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The toy's file, imported as a user's module is."""
    spec = importlib.util.spec_from_file_location("users_toy", TOY)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "users_toy", module)
    spec.loader.exec_module(module)
    return module


def about(what: Any, **options: Any) -> Any:
    return resolved(what, **options)[1]


def test_a_declared_kernel_is_tuned_alone(here: Path, toy: ModuleType) -> None:
    device = write_device(here / "device.json")
    found = tuner.tune(toy.KERNELS[0], shape={"n": 1000}, device=device, trials=3, progress=False)
    assert (found.kernel, str(found.problem), len(found.trials)) == ("blocks", "toy 1000 float32 plain", 3)
    assert [each.name for each in found.asked.request.kernels] == ["blocks"]
    with pytest.raises(UnknownName, match="unknown cuda kernel of toy 'chunks'"):
        tuner.tune(toy.KERNELS[1], shape=[1000], device=device)


def test_operations_and_problems_of_a_module_lead_to_its_file(toy: ModuleType) -> None:
    assert about(toy.OPERATION, shape=[7], dtype="float64").operation.origin == TOY
    assert about(toy.OPERATION.problem({"n": 7})).operation.origin == TOY
    assert about(toy.KERNELS[1], shape=7, layout="same").layout == "same"
    catalogue = builtin()
    naive = next(each for each in catalogue.kernels if each.name == "naive" and each.operation == "gemm")
    assert about(naive, shape=(3, 4, 5)).dims == {"m": 3, "n": 4, "k": 5}
    assert about(catalogue.operation("gemv").problem({"m": 3, "n": 4})).operation.name == "gemv"


SCRIPT = """
from pathlib import Path
import tuner
from toy import KERNELS, OPERATION
print(tuner.tune(KERNELS[0], shape=[1000], device={device!r}, trials=2, progress=False).config["BLOCK"] > 0)
"""


def test_a_script_may_import_the_declarations(here: Path) -> None:
    device = write_device(here / "device.json")
    for name in ("toy.py", "toy.cu", "toy.numba.py"):
        (here / name).write_text((TOY.parent / name).read_text())
    (here / "script.py").write_text(SCRIPT.format(device=device))
    done = subprocess.run(
        [sys.executable, "script.py"], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_a_file_of_declarations_that_tunes_itself_is_told_how(here: Path) -> None:
    text = TOY.read_text() + '\n\nimport tuner\ntuner.tune(KERNELS[0], shape=[1000], device="cpu")\n'
    (here / "toy.py").write_text(text)
    with pytest.raises(DeclarationError, match=r'calls tune meanwhile; put .* if __name__ == "__main__":'):
        tuner.tune("toy.py", shape=[1000])


WRONG = (
    ({"what": 7}, UnknownName, "unknown operation '7'"),
    ({"what": "gemm 1 1 1", "arguments": []}, InputError, "arguments goes with a kernel of your own"),
    ({"what": str(TOY), "shape": [1, 2]}, InputError, "toy takes n, got 2 sizes; give one for each"),
    ({"what": double, "shape": {"x": "n"}}, InputError, "shape goes with a declared operation; shapes= has"),
)


@pytest.mark.parametrize(("call", "kind", "message"), WRONG)
def test_what_does_not_go_together_is_told(call: dict[str, Any], kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        tuner.tune(**call)


def test_a_kernel_that_no_file_has_is_told() -> None:
    stray = tuner.Kernel("toy", "stray", "cpu", tuner.Source(Path("toy.numba.py")))
    with pytest.raises(DeclarationError, match=r"no module with a file has 'stray'; write it to a file"):
        tuner.tune(stray, shape=[1])
