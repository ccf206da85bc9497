"""Products of 8-bit numbers on a real GPU: right with every kind of scales, called with tensors.

Alone: ``pytest tests/gpu/test_fp8_gpu.py``; about half a minute.
"""

from pathlib import Path
from typing import Any

import pytest
from fixtures.callable_records import crowned
from fixtures.exported import champion, imported
from fixtures.gpu_starts import at_random, starts, wrong_starts

import tuner
from tuner.declare.catalogue import builtin
from tuner.declare.epilogue import SCALES
from tuner.declare.problem import Problem
from tuner.devices.protocol import Device
from tuner.export import export
from tuner.python.decisions import device_info

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.usefixtures("own_records", "hopper")
CATALOGUE = builtin()
GEMM = CATALOGUE.operation("gemm")
EIGHT = "float8_e4m3fn"
(KERNEL,) = CATALOGUE.of("gemm", "cuda", ("wgmma_fp8",))
(LIBRARY,) = CATALOGUE.of("gemm", "cuda", ("cublaslt_fp8",))
SIZES = [(1024, 1536, 640), (1000, 1312, 784), (1001, 777, 333), (1, 4096, 1024), (64, 2112, 7168)]
EPILOGUES = (
    "",
    *SCALES,
    "scale-line+to-float32",
    "scale-block+bias-col+relu+to-float16",
    "a-e5m2+scale-tensor",
    "b-e5m2+scale-block",
)


def problem_of(sizes: tuple[int, int, int], epilogue: str) -> Problem:
    return GEMM.problem(dict(zip("mnk", sizes, strict=True)), EIGHT, "", "", epilogue)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_promoted_starts_and_configs_at_random_are_right(
    sizes: tuple[int, int, int], epilogue: str, device: Device
) -> None:
    problem = problem_of(sizes, epilogue)
    ways = starts(KERNEL, problem, device), at_random(KERNEL, problem, device, sizes, 24)
    found, drawn = ([start for start in way if start[1]["PROMOTE"] == 1] for way in ways)
    assert found
    assert wrong_starts(problem, [*found, *drawn], device) == []


@pytest.mark.parametrize("epilogue", ["", *SCALES, "a-e5m2+scale-tensor", "b-e5m2+scale-block"])
def test_the_library_is_right(epilogue: str, device: Device) -> None:
    problem = problem_of((256, 384, 512), epilogue)
    found = [(LIBRARY, config) for config in LIBRARY.first_configs() if config["FAST"] == 0]
    assert wrong_starts(problem, found, device) == []


def test_bytes_of_cupy_in_another_layout_are_multiplied_and_by_an_exported_module(
    device: Device, tmp_path: Path
) -> None:
    problem = problem_of((304, 256, 512), "scale-tensor+to-float32")
    case = champion(KERNEL, problem, dict(starts(KERNEL, problem, device)[0][1]))
    module = imported(export(case, KERNEL, problem, "python", tmp_path)[0])
    rng, scales = cp.random.default_rng(3), (cp.full(1, 0.5, "float32"), cp.full(1, 2, "float32"))
    a, b = (rng.integers(0, 120, shape, dtype="uint8") for shape in ((304, 512), (512, 256)))
    left, right = (x.get().view(EIGHT).astype("f8") for x in (a, b))
    called = tuner.matmul(a, b, scale_a=scales[0], scale_b=scales[1], dtype="float32")
    for got in (called, module.matmul(a, b, *scales)):
        assert abs(got.get() - left @ right).max() <= problem.tolerance * (left @ right).max()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("by", ["kernel", "library"])
def test_tensors_of_pytorch_are_multiplied(by: str, scale: str, device: Device) -> None:
    torch = pytest.importorskip("torch")
    m, n, k = 304, 512, 512
    if by == "kernel":
        _, config = starts(KERNEL, problem_of((m, n, k), scale), device)[0]
        dims, how = {"m": m, "n": n, "k": k}, {"kernel": "wgmma_fp8", "epilogue": scale}
        crowned("gemm", dims, EIGHT, "nt", config, device=device_info("cuda:0"), **how)
    shapes = {"scale-tensor": ((1,), (1,)), "scale-line": ((m,), (n,)), "scale-block": ((m, 4), (4, 4))}[scale]

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda").to(torch.float8_e4m3fn)

    a, b = normal(m, k), normal(n, k).T
    of_a, of_b = (torch.rand(shape, device="cuda") + 0.5 for shape in shapes)
    got = tuner.matmul(a, b, scale_a=of_a, scale_b=of_b)
    wide = [x.double() for x in (of_a, of_b)]
    if scale == "scale-block":
        wide = [wide[0].repeat_interleave(128, 1), wide[1].repeat_interleave(128, 0).repeat_interleave(128, 1)]
    elif scale == "scale-line":
        wide[0] = wide[0][:, None]
    right = (a.double() * wide[0]) @ (b.double() * wide[1])
    assert got.dtype == torch.bfloat16
    allowed = problem_of((m, n, k), scale).tolerance * ((right**2).mean().sqrt() + right.abs())
    assert bool(((got.double() - right).abs() <= allowed).all())
