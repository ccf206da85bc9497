"""Compiled functions are modules of their own, which configs share."""

from pathlib import Path

import pytest

from tuner.declare.catalogue import builtin
from tuner.declare.kernel import Rendered, render
from tuner.declare.space import Config
from tuner.devices.cpu.numba import SourceParts, load_module

PACKED = {
    "WIDTH": 8, "MR": 6, "NR": 16, "MC": 48, "KC": 64, "NC": 256, "UNROLL": 1, "PREFETCH": 0, "THREADS": 2,
    "SHARE": "B", "SLABS": 1,
}  # fmt: skip
BUILTIN = builtin()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled before a test."""
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path))


def rendered(kernel: str, config: dict[str, object]) -> Rendered:
    (found,) = BUILTIN.of("gemm", "cpu", (kernel,))
    problem = BUILTIN.operation("gemm").problem({"m": 64, "n": 64, "k": 64})
    return render(found, problem, Config(config))  # type: ignore[arg-type]


def test_configs_of_packed_share_their_functions() -> None:
    changes = ({}, {"MC": 24}, {"KC": 128}, {"NC": 512}, {"THREADS": 4}, {"SHARE": "both"}, {"UNROLL": 2})
    texts = [SourceParts(rendered("packed", PACKED | change).text) for change in changes]
    functions = ("_take_part", "pack_a", "pack_b", "multiply_block")
    # Blocks, threads and who packs are told when it runs; the innermost loop is another with another UNROLL.
    assert [len({text.of(name) for text in texts}) for name in functions] == [1, 1, 1, 2]
    one, other = (load_module(rendered("packed", PACKED | more), in_parts=True) for more in ({}, {"MC": 96}))
    assert one.__globals__["multiply_block"] is other.__globals__["multiply_block"]
    assert one.__globals__["MC"] != other.__globals__["MC"]
