"""Expressions in dims: what a rule computes with them is what it computes with numbers."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tuner.declare.catalogue import builtin, computed_dtypes
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel, Source
from tuner.declare.launch import Launch, ceil_div
from tuner.declare.problem import Operation, Problem, Tensor, Work
from tuner.export.interface import Interface, interface_of
from tuner.export.symbolic import evaluate, in_c, in_python, traced, value_of

GPU = DeviceInfo(
    "NVIDIA H200", "cuda", architecture="sm_90a", warp_size=32, max_threads_per_block=1024,
    max_threads_per_sm=2048, shared_bytes_per_block=232448, shared_bytes_per_sm=233472,
    registers_per_block=65536, registers_per_thread=255,
)  # fmt: skip
OPERATION = Operation(
    "plain", ("m", "n"), lambda p: (Tensor("a", (p.m, p.n), "float32"),), lambda p: Work(1.0, 1.0),
    lambda xp, p, arrays: None,
)  # fmt: skip
CATALOGUE = builtin()
SIZES = st.integers(1, 300)
#: Rules as people may write them, of a problem with dims m and n.
RULES: dict[str, Callable[[Any], Any]] = {
    "ceiling": lambda p: -(-p.m // 32) * ceil_div(p.n, 8),
    "floor and rest": lambda p: (p.m + 3) // 4 + p.n % 7 - p.m * 2,
    "smaller": lambda p: min(p.m, p.n) + max(p.m, 64),
    "branch": lambda p: p.m * 2 if p.m > 64 and p.n % 2 == 0 else p.n,
    "floats": lambda p: 2.0 * p.m * p.n,
    "conditions": lambda p: ((p.m % 4 == 0) & (p.n >= 2)) | (p.m != p.n) | False,
    "condition as a number": lambda p: p.m + (p.n > 50) * 3,
    "differences": lambda p: p.m - (p.n - (p.m - p.n)) - -p.n,
}


def holds_for(face: Interface, dims: dict[str, int]) -> bool:
    """Whether what an export assumes holds for these dims."""
    return all(evaluate(assumption.condition, dims) for assumption in face.assumptions)


def problem(m: int, n: int) -> Problem:
    return OPERATION.problem({"m": m, "n": n})


@pytest.mark.parametrize("name", list(RULES))
@settings(max_examples=40)
@given(m=SIZES, n=SIZES, other_m=SIZES, other_n=SIZES)
def test_expressions_are_right_as_assumed(name: str, m: int, n: int, other_m: int, other_n: int) -> None:
    rule = RULES[name]
    dims, trace = traced(problem(m, n))
    found = rule(dims)
    assert value_of(found) == rule(problem(m, n))
    other = {"m": other_m, "n": other_n}
    for at in ({"m": m, "n": n}, other):
        holds = all(evaluate(assumption.condition, at) for assumption in trace.assumptions)
        assert holds or at is other
        if holds:
            expected = rule(problem(**at))
            assert evaluate(found, at) == expected
            assert eval(in_python(found), {**at, "ceil_div": ceil_div}) == expected
            as_python = in_c(found).replace("&&", "and").replace("||", "or").replace("/", "//")
            assert eval(as_python, {**at, "ceil_div": ceil_div}) == expected


@given(st.tuples(*[st.integers(1, 5000)] * 6), st.sampled_from(["nn", "nt", "tn", "tt"]))
def test_the_launch_of_every_built_in_kernel_is_followed(sizes: tuple[int, ...], layout: str) -> None:
    operation = CATALOGUE.operation("gemm")
    for kernel in (kernel for kernel in CATALOGUE.of("gemm", "cuda") if kernel.target == "cuda"):
        dtype = computed_dtypes(kernel, operation)[0]
        own = layout if dtype not in operation.layouts_of else ""
        tuned, asked = (
            operation.problem(dict(zip("mnk", dims, strict=True)), dtype, own)
            for dims in (sizes[:3], sizes[3:])
        )
        config = kernel.default_config()
        assume(config is not None)
        face = interface_of(kernel, tuned, config, GPU)
        assert set(face.sources) == {"m", "n", "k"}
        assert face.fixed == {}
        expected = kernel.launch(asked, config)
        assert tuple(evaluate(size, asked.dims) for size in face.launch.grid) == expected.grid
        assert tuple(evaluate(size, asked.dims) for size in face.launch.block) == expected.block
        assert evaluate(face.launch.shared_bytes, asked.dims) == expected.shared_bytes
        if kernel.allows(tuned, GPU, config):
            assert holds_for(face, asked.dims) == kernel.allows(asked, GPU, config)


def test_rules_that_cannot_be_followed_hold_for_one_shape(tmp_path: Any) -> None:
    def stubborn(p: Problem, c: Any) -> Launch:
        assert type(p.m) is int
        return Launch((p.m,), (32,))

    kernel = Kernel("plain", "stubborn", "cuda", Source(tmp_path / "none.cu"), launch=stubborn)
    face = interface_of(kernel, problem(7, 9), {}, GPU)
    assert face.launch == Launch((7,), (32,))
    assert face.fixed == {"m": 7, "n": 9}
    assert holds_for(face, {"m": 7, "n": 9})
    assert not holds_for(face, {"m": 7, "n": 8})
