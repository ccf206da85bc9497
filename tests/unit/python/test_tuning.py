"""`tuner.tune`: what it takes, what it returns, and how it is interrupted."""

from __future__ import annotations

import csv
import importlib.util
import io
import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest
from fixtures.fake_device import BEST, BEST_S, LEGAL, ROOT, TOY, database, study, write_device
from fixtures.own_kernels import PARAMS, VECTOR_ADD, add_arguments, double, gather, plain_device
from pyarrow import parquet

import tuner
from tuner.cli.main import run
from tuner.declare import catalogue
from tuner.declare.catalogue import builtin
from tuner.declare.space import Space
from tuner.devices.detect import find
from tuner.errors import DeclarationError, DeviceTrouble, InputError, NothingFound, UnknownName
from tuner.python.tuned import COLUMNS, Tuned
from tuner.python.tuning import resolved
from tuner.workers.inputs import Inputs

SUM: dict[str, Any] = {"problem_size": 1000, "reference": numpy.add}


@pytest.fixture
def device(here: Path) -> str:
    return plain_device(here / "device.json")


def tune_add(device: str, text: str = VECTOR_ADD, **options: Any) -> Tuned:
    options = {**SUM, "trials": 20, "progress": False} | options
    return tuner.tune(text, "vector_add", add_arguments(), PARAMS, device=device, **options)


def test_a_file_and_a_declared_problem_are_tuned_as_by_the_command_line(here: Path) -> None:
    device = write_device(here / "device.json", baseline_s=2 * BEST_S)
    options = {"device": device, "sampler": "random", "trials": 100, "progress": False}
    found = tuner.tune(str(TOY), shape={"n": 1000}, **options)  # type: ignore[arg-type]
    assert (found.config, len(found.trials), found.stopped) == (BEST, LEGAL, "space covered")
    assert found.speedup == pytest.approx(2, rel=0.01)
    assert f"; the champion is {found.speedup:.3f} x CuPy" in str(found)
    # The same problem once more, beside a faster library: nothing is left to try.
    write_device(here / "device.json", baseline_s=BEST_S / 2)
    problem = catalogue.from_file(TOY).operation("toy").problem({"n": 1000})
    again = tuner.tune(problem, **options)  # type: ignore[arg-type]
    assert (again.config, len(again.trials)) == (BEST, LEGAL)
    assert f"; the champion is slower than CuPy: {again.speedup:.3f} of its speed" in str(again)


def test_cuda_text_is_tuned_on_arrays(device: str) -> None:
    found = tune_add(device, restrictions=["block_size_x < 1024 and block_size_x % 64 == 0"])
    assert sorted(each.config["block_size_x"] for each in found.trials) == [64, 128, 256, 512]
    assert str(found.problem) == "vector_add 1000 float32"
    assert found.declaration.with_suffix(".cu").read_text().count('extern "C"') == 1
    assert "fresh random inputs" in repr(found)


def test_an_answer_is_enough_and_is_told_as_what_it_is(device: str) -> None:
    _, a, b, _ = add_arguments()
    found = tune_add(device, reference=None, answer=[a + b, None, None, None])
    assert found.champion is not None
    assert "on the given inputs alone" in found.explain()
    # The fake device writes what the reference says, so that it needs a fault to be wrong.
    wrong = plain_device(Path("wrong.json"), rules=[{"where": {}, "fault": "wrong_result"}])
    with pytest.raises(NothingFound, match="wrong result: largest error"):
        tune_add(wrong, reference=None, answer=a - b, db="sqlite:///wrong.db")(a, b)


@pytest.mark.parametrize(
    "options",
    [{"reference": lambda a, b: b + a}, {"text": VECTOR_ADD.replace("a[i] + b[i]", "b[i] + a[i]")}],
    ids=["by another reference", "another source of the same name"],
)
def test_what_agreed_with_another_reference_or_source_is_checked(device: str, options: dict[str, Any]) -> None:
    first = tune_add(device)
    other = tune_add(device, **options)
    assert other.champion is not None
    assert other.champion != first.champion
    assert len(other.trials) == len(first.trials)
    assert not {each.id for each in first.trials} & {each.id for each in other.trials}
    # The first one is asked again: its trials count, and no other's.
    assert {each.id for each in tune_add(device).trials} == {each.id for each in first.trials}


def test_it_works_in_a_thread_and_reports_to_a_function(device: str) -> None:
    stages = list[str]()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(tune_add, device, progress=lambda now: stages.append(now.stage)).result()
    assert found.champion is not None
    assert list(dict.fromkeys(stages)) == ["opening", "searching", "finals", "done"]


def test_whole_numbers_are_drawn_from_ones_own(here: Path) -> None:
    """Indices that were drawn freely would be out of range, and so would these for a smaller table."""
    arguments = [numpy.ones(50, "float32"), numpy.arange(200) % 50, numpy.ones(200, "float32")]
    catalogue, problem = resolved(gather, "", arguments, {"CHUNK": [16]}, reference=numpy.take)
    inputs = Inputs(numpy, problem, numpy.random.default_rng(1), 1)
    first = inputs.arrays["places"].copy()
    inputs.shuffle()
    assert (inputs.arrays["places"] != first).any()
    assert set(inputs.arrays["places"]) <= set(range(50))
    [kernel] = catalogue.of("gather")
    info = find("cpu").info
    assert len(Space.build(kernel.parameters, kernel.constraints, problem, info)) == 1
    smaller = problem.at({"n": 49, "n2": 200})
    assert len(Space.build(kernel.parameters, kernel.constraints, smaller, info)) == 0


INTERRUPTED = """
import sys
sys.path.insert(0, {tests!r})
from fixtures.own_kernels import *
import tuner
device = plain_device(Path("device.json"), pace=1.0, base_s=0.005)
params = {{"block_size_x": list(range(32, 1024, 8))}}
told = []
def report(now):
    if now.trials >= 3 and not told: told.append(print("go", flush=True))
found = tuner.tune(
    VECTOR_ADD, "vector_add", add_arguments(), params, problem_size=1000, reference=numpy.add, device=device,
    seconds=120, progress=report,
)
try: found.export()
except tuner.errors.NothingFound as nothing: print(nothing)
print(found.interrupted, found.champion, len(found.trials) >= 3, found.config["block_size_x"] >= 32)
"""


def test_ctrl_c_returns_what_there_is(here: Path) -> None:
    script = textwrap.dedent(INTERRUPTED.format(tests=str(ROOT / "tests")))
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout.readline() == "go\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert out.splitlines()[-1] == "True None True True", err
    assert "no finals were held, or none passed them (interrupted;" in out
    assert "interrupted; every finished trial is kept" in err


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The toy's file, imported as a user's module is."""
    spec = importlib.util.spec_from_file_location("users_toy", TOY)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "users_toy", module)
    spec.loader.exec_module(module)
    return module


def stray() -> tuner.Kernel:
    return tuner.Kernel("toy", "stray", "cpu", tuner.Source(Path("toy.numba.py")))


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


def test_a_file_of_declarations_that_tunes_itself_is_told_how(here: Path) -> None:
    text = TOY.read_text() + '\n\nimport tuner\ntuner.tune(KERNELS[0], shape=[1000], device="cpu")\n'
    (here / "toy.py").write_text(text)
    with pytest.raises(DeclarationError, match=r'calls tune meanwhile; put .* if __name__ == "__main__":'):
        tuner.tune("toy.py", shape=[1000])


@pytest.mark.parametrize(
    ("what", "options", "kind", "message"),
    [
        ("gem 1 1 1", {}, UnknownName, "unknown operation 'gem'; did you mean gemv, gemm"),
        ("gemm 1 1 1", {"second": 1}, UnknownName, "unknown option 'second'; did you mean seconds"),
        ("gemm 8 8 8", {"seconds": -1}, InputError, "is a number above 0, got -1"),
        ("gemm 1 1 1", {"arguments": []}, InputError, "arguments goes with a kernel of your own"),
        (str(TOY), {"shape": [1, 2]}, InputError, "toy takes N: 1 dims, got 2; give a size for each"),
        (7, {}, UnknownName, "unknown operation '7'"),
        (stray(), {"shape": [1]}, DeclarationError, "no module with a file has 'stray'; write it to a file"),
        (double, {}, InputError, "is tuned by its parameters, got none"),
        (double, {"params": {"BLOCK": [1]}}, InputError, "tuned on arguments like those of a call"),
        (double, {"shape": {"x": "n"}}, InputError, "shape goes with a declared operation; shapes= has"),
    ],
)
def test_mistakes(here: Path, what: Any, options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        tuner.tune(what, **options)


def test_cuda_text_needs_a_gpu(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.python.tuning.gpus", list)
    with pytest.raises(DeviceTrouble, match="CUDA needs an NVIDIA GPU and its driver, found none"):
        tune_add("")


# --- tables ----------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study of the toy."""
    made = tmp_path_factory.mktemp("tables")
    study(made, write_device(made / "device.json", baseline_s=1e-3))
    return made


def test_records_are_a_table_in_python(folder: Path) -> None:
    table = tuner.records(db=database(folder), operation="toy", role="trial")
    assert len(table) == LEGAL
    assert repr(table).startswith(f"<{LEGAL} rows of ")
    assert list(table.columns) == [*COLUMNS, "dim.n", "config.BLOCK", "config.ITEMS", "config.ORDER"]
    assert {row["dim.n"] for row in table} == {1000}
    frame = table.to_dataframe()
    assert (len(frame), frame["config.BLOCK"].dtype.kind) == (LEGAL, "i")
    assert frame["measured_at"].is_monotonic_increasing
    assert len(tuner.records(db=database(folder), shape=[999])) == 0
    with pytest.raises(NothingFound, match="there is no database"):
        tuner.records(db="sqlite:///nowhere/none.db")


def test_csv_and_parquet_agree(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export = ["records", "export", "--db", database(folder), "--quiet"]
    assert run([*export, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert run([*export, "--format", "parquet"]) == 2
    assert "Parquet goes to a file, got none" in capsys.readouterr().err
    assert run([*export, "--format", "parquet", "-o", str(tmp_path / "all.parquet")]) == 0
    table = parquet.read_table(tmp_path / "all.parquet")
    assert table.column_names == list(rows[0])
    frame = table.to_pandas()
    assert frame["id"].tolist() == [row["id"] for row in rows]
    assert frame["time_s"].tolist() == pytest.approx([float(row["time_s"]) for row in rows])
    assert frame[frame["role"] == "baseline"]["config.BLOCK"].isna().all()
