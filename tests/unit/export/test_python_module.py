"""Exported Python modules: they work without this package, and refuse as NumPy does."""

import ctypes
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.exported import GXX, champion, gemm, imported, operands, own, run_on_host

from tuner.declare.catalogue import from_file
from tuner.declare.kernel import render
from tuner.declare.launch import Launch, Pieces, Step, Workspace, hash_of_launch
from tuner.declare.space import Config
from tuner.errors import DeclarationError
from tuner.export import export

LAYOUTS = ("nn", "nt", "tn", "tt")


@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_an_exported_cpu_module_multiplies_without_this_package(layout: str, tmp_path: Path) -> None:
    (path,) = export(*gemm("naive", "cpu", layout), "python", tmp_path)
    script = f"""
import sys, warnings
sys.path.insert(0, {str(tmp_path)!r})
import numpy as np, {path.stem} as exported
for m, n, k in ((300, 200, 100), (1, 1, 1), (7, 5, 33)):
    a, b = np.arange(m * k, dtype="f4").reshape(m, k) % 7, np.arange(k * n, dtype="f4").reshape(k, n) % 5
    for left, right in ((a, b), (np.asfortranarray(a), np.asfortranarray(b)), (a[::-1], b[:, ::-1])):
        assert np.array_equal(exported.matmul(left, right), left @ right)
assert not any(name.split(".")[0] in ("tuner", "cupy", "optuna") for name in sys.modules)
print("right")
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "right\n", done.stderr


def test_the_source_of_a_cpu_kernel_is_the_module(tmp_path: Path) -> None:
    given = gemm("naive", "cpu")
    assert export(*given, "source", tmp_path) == export(*given, "python", tmp_path)


WRONG: list[tuple[Any, type[Exception], str]] = [
    (lambda a, b: (a.astype("f8"), b), TypeError, r"matmul: a must be float32, got float64; convert it"),
    (lambda a, b: (a.tolist(), b), TypeError, "matmul: a must be a NumPy array, got list"),
    (lambda a, b: (a, b[0]), ValueError, "matmul: b must have 2 dimensions, got 1"),
    (lambda a, b: (a, b[1:]), ValueError, r"b must be \(k, n\), here \(4, 5\), got shape \(3, 5\)"),
    (lambda a, b: (a[:0], b), ValueError, "no dim may be empty, got m=0, n=5, k=4"),
]


@pytest.mark.parametrize(("change", "kind", "told"), WRONG)
def test_a_module_refuses_as_numpy_does(change: Any, kind: Any, told: str, tmp_path: Path) -> None:
    module = imported(export(*gemm("naive", "cpu"), "python", tmp_path)[0])
    with pytest.raises(kind, match=told):
        module.matmul(*change(*operands(3, 5, 4)))


def test_a_module_of_a_users_own_operation(tmp_path: Path) -> None:
    module = imported(export(*own(tmp_path, "cpu"), "python", tmp_path)[0])
    data = np.arange(6, dtype=np.float32)
    assert np.array_equal(module.spread(data, copies=2), [data, 2 * data])
    with pytest.raises(ValueError, match=r"spread: copies % 2 == 0 must hold \(copies are in pairs\), got n=6"):
        module.spread(data, copies=3)
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'copies'"):
        module.spread(data)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_cuda_module_launches_the_kernel_as_it_was_tuned(layout: str, tmp_path: Path, cupy: Any) -> None:
    crowned, kernel, problem = gemm("register_tiled", "cuda", layout, (512, 512, 512))
    module = imported(export(crowned, kernel, problem, "python", tmp_path)[0])
    left, right = operands(256, 512, 128)
    a, b = cupy.array(left), cupy.array(right)
    a.address = 4
    module.matmul(a, b)
    assert cupy.launches[0][3][0] is not a, "no array is read at an odd address"
    c = module.matmul(cupy.array(np.asfortranarray(left)), b)
    asked = problem.operation.problem({"m": 256, "n": 512, "k": 128}, layout=layout)
    rule = kernel.launch(asked, kernel.default_config())
    assert len(cupy.compiled) == 1
    assert kernel.text.strip() in cupy.compiled[0][0]
    for _, grid, block, arguments, shared_mem in cupy.launches:
        assert (grid, block, shared_mem) == (rule.grid, rule.block, rule.shared_bytes)
        stored_a, stored_b, _, *scalars = arguments
        assert np.array_equal(stored_a, left.T if layout[0] == "t" else left)
        assert np.array_equal(stored_b, right.T if layout[1] == "t" else right)
        assert stored_a.flags.c_contiguous
        assert stored_b.flags.c_contiguous
        assert scalars == [256, 512, 128]
        assert {type(scalar) for scalar in scalars} == {np.int32}
    assert c is cupy.launches[-1][3][2]
    assert (c.shape, c.dtype) == ((256, 512), np.float32)


def test_a_cuda_module_refuses_what_its_config_is_not_made_for(tmp_path: Path, cupy: Any) -> None:
    module = imported(export(*gemm("register_tiled", "cuda", "nn", (512, 512, 512)), "python", tmp_path)[0])
    with pytest.raises(ValueError, match=r"must hold \(the rows of A and B are divisible by VECTOR.*k=127"):
        module.matmul(*(cupy.array(each) for each in operands(256, 256, 127)))
    with pytest.raises(TypeError, match="a must be a CuPy array, got ndarray"):
        module.matmul(*operands(256, 256, 128))
    assert cupy.launches == []


# --- several launches ----------------------------------------


FILE = Path(__file__).resolve().parents[2] / "fixtures" / "several_launches.py"
CATALOGUE = from_file(FILE)
KERNEL = CATALOGUE.kernels[0]
PROBLEM = CATALOGUE.operation("thrice").problem({"n": 100})
CASE = (champion(KERNEL, PROBLEM, {"BLOCK": 32}), KERNEL, PROBLEM)
#: The same with a second step that may start while the first ends.
EARLY = replace(KERNEL, launch=lambda p, c: with_early(KERNEL.launch(p, c)))
EARLY_CASE = (champion(EARLY, PROBLEM, {"BLOCK": 32}), EARLY, PROBLEM)


def with_early(found: Launch) -> Launch:
    first, second = found.steps
    return replace(found, steps=(first, replace(second, early=True)))


def launch() -> Launch:
    found = render(KERNEL, PROBLEM, Config({"BLOCK": 32})).launch
    assert found is not None
    return found


def test_hashes_follow_the_steps_and_are_what_they_were_before_there_were_such() -> None:
    config = Config({"BLOCK": 32})
    launches = {
        "13f33939ba5e42ad": launch(),
        "42cb0e219acd9599": Launch((3,), (32,), 0, (), None, Workspace(64)),
        "": replace(launch(), steps=launch().steps[:1]),
    }
    hashes = [
        replace(KERNEL, launch=lambda p, c, of=of: of).launch_hash(PROBLEM, config) for of in launches.values()
    ]
    assert hashes[:2] == [*launches][:2], "a record from before still is of this launch"
    assert len({*hashes, hash_of_launch({}, with_early(launch())), hash_of_launch({}, launch())}) == 4


def test_a_main_step_that_is_none_and_steps_beside_pieces_are_refused() -> None:
    with pytest.raises(DeclarationError, match=r"main= is the entry of a step \(one\), got 'two'"):
        Launch.of("two", (Step("one", (1,), (32,)),))
    with pytest.raises(DeclarationError, match="a launch has steps or pieces, got both"):
        Launch((1,), (32,), pieces=Pieces("piece", "x", 4), steps=(Step("one", (1,), (32,)),))
    with pytest.raises(DeclarationError, match=r"an early step follows another one, .* 'one' is the f"):
        Launch.of("one", (Step("one", (1,), (32,), early=True), Step("two", (1,), (32,))))


@GXX
def test_the_exported_main_finds_it_right(tmp_path: Path) -> None:
    (path,) = export(*CASE, "source", tmp_path)
    code, told = run_on_host(path, launched=2)
    assert (code, told.splitlines()[-1]) == (0, "PASSED"), told
    assert run_on_host(path, 1, launched=2)[0] == 0
    code, told = run_on_host(path, change=("= 2 * x[i]", "= 3 * x[i]"), launched=2)
    assert (code, told.splitlines()[-1]) == (1, "FAILED"), told


@GXX
def test_an_exported_main_launches_early_what_is_early(tmp_path: Path) -> None:
    (path,) = export(*EARLY_CASE, "source", tmp_path)
    assert path.read_text().count("status = cudaLaunchKernelEx(&config, ::added, ") == 1
    code, told = run_on_host(path)
    assert (code, told.splitlines()[-1]) == (0, "PASSED"), told
    code, told = run_on_host(path, change=("attrs = &early", "attrs = nullptr"))
    assert code == 3, told


def test_the_binary_tells_the_launches(tmp_path: Path) -> None:
    rules = json.loads(export(*EARLY_CASE, "binary", tmp_path)[1].read_text())["rules"]
    assert rules["workspace"]["regions"] == [["flags", 0], ["doubles", 256]]
    assert [(step["entry"], step["early"]) for step in rules["steps"]] == [("doubled", False), ("added", True)]
    assert rules["steps"][1]["arguments"] == ["x", "doubles", "y", "", "n"]


class Driver:
    """Stands for the driver, and notes what it launches."""

    def __init__(self) -> None:
        self.status, self.launched = 0, list[tuple[Any, ...]]()

    def cuDriverGetVersion(self, to: Any) -> int:  # noqa: N802  # the driver's name
        to._obj.value = 13000
        return 0

    def cuLaunchKernelEx(self, config: Any, function: Any, parameters: Any, extra: None) -> int:  # noqa: N802
        given, early = config._obj, config._obj.attributes[0]
        last = ctypes.cast(parameters[len(parameters) - 1], ctypes.POINTER(ctypes.c_int))[0]
        attributes = given.attribute_count, early.id, early.value[0]
        self.launched.append((function.value, list(given.sizes), given.stream, attributes, last))
        return self.status


def test_the_exported_module_launches_them_in_order_and_an_early_one_by_the_driver(
    tmp_path: Path, cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported(export(*CASE, "python", tmp_path)[0]).thrice(cupy.array(np.ones(50, np.float32)))
    (doubled, grid, block, given, _), (added, *_, last, _) = cupy.launches
    assert (doubled, added, grid, block) == ("doubled", "added", (2,), (32,))
    assert (len(given[1]), last[-1]) == (256, 50)
    driver = Driver()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    thrice, x = imported(export(*EARLY_CASE, "python", tmp_path)[0]).thrice, cupy.array(np.ones(50, np.float32))
    thrice(x)
    assert [name for name, *_ in cupy.launches[2:]] == ["doubled"]
    assert driver.launched == [(77, [2, 1, 1, 32, 1, 1, 0], 9, (1, 6, 1), 50)]
    driver.status = 701
    with pytest.raises(RuntimeError, match="cuLaunchKernelEx failed with status 701"):
        thrice(x)
