"""Which configs are legal: what holds at any shape is asked once, and nothing else changes."""

import numpy as np
from fixtures.lookup_records import BOARD
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.declare.catalogue import builtin
from tuner.declare.kernel import Kernel
from tuner.declare.space import Config
from tuner.lookup.legality import Points

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
