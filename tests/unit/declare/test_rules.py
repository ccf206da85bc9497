"""Rules that kernels share: each on numbers and on arrays, at the edge of what it allows."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tuner.declare import rules
from tuner.declare.catalogue import Declarations, builtin
from tuner.declare.folders import kernels_folder
from tuner.declare.hardware import DeviceInfo
from tuner.declare.space import Constraint

#: Rules that kernels of one folder share lie there.
of_gemm = Declarations().load(kernels_folder() / "gemm/cuda/_rules.py")
GPU = DeviceInfo(
    name="small GPU", kind="cuda", compute_capability=80, sm_count=10, warp_size=32, max_threads_per_block=1024,
    max_threads_per_sm=2048, shared_bytes_per_block=99 << 10, shared_bytes_per_sm=100 << 10,
    registers_per_block=65_536, registers_per_thread=255,
)  # fmt: skip
CPU = DeviceInfo(name="four cores", kind="cpu", cores=4, vector_bytes=32)
GEMM = builtin().operation("gemm").problem({"m": 100, "n": 64, "k": 1000}, "float32", "nn")
DOUBLE = builtin().operation("gemm").problem({"m": 100, "n": 64, "k": 1000}, "float64", "nn")


def kept(rule: Constraint, device: Any = GPU, problem: Any = GEMM, **columns: Any) -> list[bool]:
    """Which configs a rule keeps, asked about all at once and one by one."""
    arrays = {name: np.array(values) for name, values in columns.items()}
    count = len(next(iter(arrays.values())))
    together = np.broadcast_to(rule.rule(problem, device, SimpleNamespace(**arrays)), count).tolist()
    alone = [
        bool(rule.rule(problem, device, SimpleNamespace(**{name: columns[name][at] for name in columns})))
        for at in range(count)
    ]
    assert together == alone, "a rule works on numbers and on arrays alike"
    return alone


T, S, R = (lambda p, c: c.T), (lambda p, c: c.S), (lambda p, c: c.R)
OLD = DeviceInfo(name="old GPU", kind="cuda", compute_capability=75)
HUGE = builtin().operation("gemm").problem({"m": 1, "n": 2**30, "k": 1})
KEPT: tuple[tuple[Constraint, dict[str, Any], list[bool]], ...] = (
    (rules.threads_fit(T, least_warps=2), {"T": [32, 64, 1024, 1025]}, [False, True, True, False]),
    (rules.shared_fits("tiles", S), {"S": [99 << 10, (99 << 10) + 1]}, [True, False]),
    (rules.static_shared_fits("a tile", S), {"S": [48 << 10, (48 << 10) + 1]}, [True, False]),
    # The device keeps 1 KiB for itself for each block.
    (rules.blocks_fit(T, S),
     {"T": [1024, 1024, 64, 64], "S": [0, 0, 49 << 10, (49 << 10) + 1], "BLOCKS_PER_SM": [2, 3, 2, 2]},
     [True, False, True, False]),
    (rules.registers_fit("sums", R, T),
     {"R": [128, 129, 64, 65], "T": [256] * 4, "BLOCKS_PER_SM": [2, 2, 4, 4]}, [True, False, True, False]),
    (rules.block_registers_fit("sums", R, T), {"R": [64, 65, 255, 256], "T": [1024, 1024, 32, 32]},
     [True, False, True, False]),
    (of_gemm.residency_limits_registers(T), {"T": [64, 64, 512], "BLOCKS_PER_SM": [1, 2, 2]},
     [True, False, True]),
    (of_gemm.enough_warps(T, 8), {"T": [128, 128], "BLOCKS_PER_SM": [1, 2]}, [False, True]),
    (of_gemm.blocks_run_at_once(), {"BLOCKS": [0, 20, 10], "BLOCKS_PER_SM": [1, 2, 2]}, [True, True, False]),
    (rules.copy_at_most_16_bytes("V", "W"), {"V": [4, 4, 8], "W": [4, 8, 4]}, [True, False, False]),
    (rules.copy_at_most_16_bytes("V"), {"problem": DOUBLE, "V": [2, 4]}, [True, False]),
    (rules.asynchronous_copies("STAGES"), {"STAGES": [2, 3]}, [True, True]),
    (rules.asynchronous_copies("STAGES"), {"device": OLD, "STAGES": [0, 2]}, [True, False]),
    (rules.access_holds_an_element(), {"problem": DOUBLE, "ACCESS_BYTES": [4, 8]}, [False, True]),
    (of_gemm.divisible_lines({"A": "V", "B": "W"}, lambda p, c: (p.k, p.n + 2)),
     {"V": [4, 16, 4], "W": [2, 2, 4]}, [True, False, False]),
    (of_gemm.offsets_fit_32_bits(R, "m", "n", "k"), {"problem": HUGE, "R": [3, 4]}, [True, False]),
    (of_gemm.offsets_fit_32_bits(R, "m", "k"), {"problem": HUGE, "R": [4]}, [True]),
    (rules.at_most_cores(), {"device": CPU, "THREADS": [1, 4, 5]}, [True, True, False]),
    (rules.at_most_cores("JOBS"), {"device": DeviceInfo("unknown", "cpu"), "JOBS": [1, 2]}, [True, False]),
    (rules.work_for_each_thread("a row", lambda p, c: p.m), {"THREADS": [100, 101]}, [True, False]),
    (rules.vectors_as_wide_as_the_cpu(), {"device": CPU, "WIDTH": [4, 8, 16]}, [False, True, False]),
    (rules.vectors_as_wide_as_the_cpu("W"), {"device": CPU, "problem": DOUBLE, "W": [4]}, [True]),
)  # fmt: skip


@pytest.mark.parametrize(("rule", "asked", "expected"), KEPT, ids=lambda given: getattr(given, "sentence", ""))
def test_a_rule_keeps_what_the_device_can(rule: Constraint, asked: Any, expected: list[bool]) -> None:
    assert kept(rule, **asked) == expected
