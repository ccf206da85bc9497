"""Exported Python modules: they work without this package, and refuse as NumPy does."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.exported import gemm, imported, operands, own

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
