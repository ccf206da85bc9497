"""Kernels of Triton's on a real GPU: tuned in spite of bad members, answered in a second process, exported.

Run it on a machine with a GPU, PyTorch and Triton: ``./scripts/test tests/gpu/test_triton_gpu.py``.
"""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.fake_device import ROOT

import tuner

TILES = {"BM": [32, 64], "BN": [32, 64], "BK": [32], "num_warps": [4], "num_ctas": [1, 2]}
CASES = [
    ("product", (300, 200, 96), TILES, ("ceil_div(M, BM)", "ceil_div(N, BN)")),
    ("softmax", (64, 1000), {"WIDTH": [1024, 2048], "PROGRAMS": [32, 64], "num_warps": [8]}, "PROGRAMS"),
    ("layer_norm", (64, 1000), {"BLOCK": [256, 1024], "num_warps": [2, 8]}, "rows"),
]
REFERENCES: dict[str, Any] = {
    "product": np.matmul,
    "softmax": lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True),
    "layer_norm": lambda x: (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5),
}


def load() -> None:
    global torch, triton, KERNELS
    torch, triton = pytest.importorskip("torch"), pytest.importorskip("triton")
    KERNELS = runpy.run_path(str(ROOT / "scripts" / "bench" / "triton_kernels.py"))


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Loaded by the process that runs these tests, not by all that collect them: it takes seconds."""
    load()


def blocks(meta: dict[str, Any]) -> tuple[int, ...]:
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_DB", f"sqlite:///{tmp_path}/studies.db")


def drawn(*shape: int, dtype: str = "float32") -> Any:
    return torch.randn(shape, device="cuda").to(getattr(torch, dtype))


@pytest.mark.parametrize(("kernel", "sizes", "params", "grid"), CASES, ids=lambda case: "")
def test_a_kernel_is_tuned_and_its_export_runs(
    kernel: str, sizes: tuple[int, ...], params: Any, grid: Any, tmp_path: Path
) -> None:
    m, n, k = (*sizes, 0)[:3]
    shapes = [(m, k), (k, n), (m, n)] if k else [(m, n), (m, n)]
    arrays, reference = (
        [drawn(*shape, dtype="float16" if k else "float32") for shape in shapes],
        REFERENCES[kernel],
    )
    result = tuner.tune(
        KERNELS[kernel], [*arrays, *sizes], params, grid=grid, reference=reference, seconds=60, progress=False
    )
    assert result.champion is not None
    assert {trial.measurement.outcome.name for trial in result.trials} <= {"MEASURED", "PRUNED"}
    run = runpy.run_path(str(result.export("source", tmp_path)[0]))["run"]  # needs Triton alone
    run(*arrays, *sizes)
    right = reference(*(array.double().cpu().numpy() for array in arrays[:-1]))
    assert np.allclose(arrays[-1].double().cpu().numpy(), right, rtol=2e-3, atol=2e-3)


def test_what_crashes_hangs_or_is_wrong_is_a_record_and_a_right_config_wins() -> None:
    params = {"BLOCK": [1024, 256], "FAULT": [0, 1, 2, 3, 4], "num_warps": [4]}
    arguments = [drawn(1 << 20), drawn(1 << 20), 1 << 20]
    result = tuner.tune(
        KERNELS["twice"],
        arguments,
        params,
        grid="ceil_div(n, BLOCK)",
        reference=lambda x: 2 * x,
        seconds=90,
        progress=False,
    )
    assert result.config["FAULT"] == 0
    outcomes = {trial.config["FAULT"]: trial.measurement.outcome.name for trial in result.trials}
    assert outcomes[1] in ("LAUNCH_FAILED", "CRASHED")
    assert (outcomes[2], outcomes[3], outcomes[4]) == ("TIMED_OUT", "WRONG_RESULT", "WRONG_RESULT")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gemm_has_a_member_in_triton_that_is_right_in_every_layout_and_competes(dtype: str) -> None:
    for layout in ("nn", "nt", "tn", "tt"):
        problem = f"gemm 1000 520 777 {dtype} {layout}"
        result = tuner.tune(problem, kernels=["triton_tiled"], trials=6, seconds=60, progress=False)
        assert result.champion is not None
        assert {trial.measurement.outcome.name for trial in result.trials} <= {"MEASURED", "PRUNED"}
    kernels = ["triton_tiled", "warp_tiled" if dtype == "float32" else "half_tiled"]
    beside = tuner.tune(f"gemm 1024 1024 1024 {dtype}", kernels=kernels, trials=32, seconds=60, progress=False)
    assert {trial.kernel for trial in beside.trials} == {*kernels}


def cleared(args: dict[str, Any]) -> None:
    args["out"].zero_()


def called() -> None:
    """What a program does; it prints how many records there are then."""
    more: Any = {"num_warps": 8, "pre_hook": cleared}
    configs = [triton.Config({"BLOCK": block}, **more) for block in (256, 512, 1024, 2048)]
    x, out = drawn(1 << 20), drawn(1 << 20)
    tuner.autotune(configs, ["n"], seconds=8)(KERNELS["twice"])[blocks](x, out, 1 << 20)
    assert torch.equal(out, 2 * x)
    print(len(tuner.records("twice")))


def test_a_second_process_has_the_answer_without_tuning() -> None:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    call, environment = [sys.executable, str(Path(__file__))], os.environ | {"PYTHONPATH": paths}
    first, second = (subprocess.check_output(call, env=environment, text=True, timeout=300) for _ in range(2))
    assert int(first.split()[-1]) > 0
    assert first.split()[-1] == second.split()[-1]


if __name__ == "__main__":
    load()
    called()
