"""Which configs are legal: what holds at any shape is asked once, and nothing else changes."""

import numpy as np
import pytest
from fixtures.lookup_records import BOARD
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.declare.catalogue import builtin
from tuner.declare.kernel import Kernel
from tuner.declare.space import Config
from tuner.lookup.legality import Points
from tuner.model.table import Choices

CATALOGUE = builtin()
GEMM = CATALOGUE.operation("gemm")
KERNELS = CATALOGUE.of("gemm", "cuda", ("tiled", "register_tiled", "warp_tiled"))
DIMS = st.one_of(st.integers(1, 200), st.sampled_from([512, 1001, 4096]))


def drawn(kernel: Kernel, rng: np.random.Generator) -> list[Config]:
    values = [(each.name, each.values) for each in kernel.parameters]
    return [Config({name: of[rng.integers(len(of))] for name, of in values}) for _ in range(40)]


CONFIGS = {kernel.name: drawn(kernel, np.random.default_rng(0)) for kernel in KERNELS}
KEPT = {kernel.name: Points(kernel, CONFIGS[kernel.name]) for kernel in KERNELS}


@settings(max_examples=40)
@given(m=DIMS, n=DIMS, k=DIMS, layout=st.sampled_from(["nn", "tt"]))
def test_flags_are_those_of_every_constraint(m: int, n: int, k: int, layout: str) -> None:
    problem = GEMM.problem({"m": m, "n": n, "k": k}, layout=layout)
    for kernel in KERNELS:
        points = KEPT[kernel.name]
        right, fast = points.flags(problem, BOARD)
        for at, config in enumerate(CONFIGS[kernel.name]):
            obeyed = [(each.for_speed, bool(each.rule(problem, BOARD, config))) for each in kernel.constraints]
            assert right[at] == all(holds for for_speed, holds in obeyed if not for_speed)
            assert fast[at] == all(holds for _, holds in obeyed)
        some = np.arange(len(right)) % 3 == 0
        for flags, whole in zip(points.flags(problem, BOARD, some), (right, fast), strict=True):
            np.testing.assert_array_equal(flags, whole & some)


def test_what_is_no_point_of_a_kernel_is_never_legal() -> None:
    kernel = KERNELS[0]
    good = dict(kernel.first_configs()[0])
    bad = [good | {"BLOCK": 7}, good | {"MORE": 1}, {}]
    choices = Choices([(kernel.name, each) for each in (good, *bad)] + [("gone", {})], KERNELS)
    problem = GEMM.problem({"m": 512, "n": 512, "k": 512})
    assert choices.legal(problem, BOARD).tolist() == [0]
    assert choices.named(0) == (kernel.name, good)
    assert choices.legal(problem, BOARD, np.zeros(5, bool)).tolist() == []
    with pytest.raises(KeyError, match="gone"):
        choices.named(4)
