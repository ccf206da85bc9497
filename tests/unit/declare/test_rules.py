"""Rules that kernels share: each on numbers and on arrays, at the edge of what it allows."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("problem", "length", "most", "widest"),
    [(GEMM, 8, 4, 4), (GEMM, 6, 4, 2), (GEMM, 7, 4, 1), (GEMM, 8, 2, 2), (DOUBLE, 8, 4, 2)],
)
def test_the_widest_vector_is_aligned_and_at_most_16_bytes(
    problem: Any, length: int, most: int, widest: int
) -> None:
    assert of_gemm.widest_vector(problem, length, most) == widest
    assert of_gemm.widest_vector(problem, np.array([length]), np.array([most])).tolist() == [widest]
    assert rules.smaller(length, most) == min(length, most)
    assert rules.larger(np.array([length]), most).tolist() == [max(length, most)]


def test_threads_are_within_a_block() -> None:
    threads = rules.threads_fit(lambda p, c: c.T, least_warps=2)
    assert kept(threads, T=[32, 64, 1024, 1025]) == [False, True, True, False]
    assert "at least 2 warps" in threads.sentence
    assert not threads.for_speed


def test_shared_memory_is_within_a_block_and_a_multiprocessor() -> None:
    size = 99 << 10
    assert kept(rules.shared_fits("tiles", lambda p, c: c.S), S=[size, size + 1]) == [True, False]
    static = rules.static_shared_fits("a tile", lambda p, c: c.S)
    assert kept(static, S=[48 << 10, (48 << 10) + 1]) == [True, False]
    fit = rules.blocks_fit(lambda p, c: c.T, lambda p, c: c.S)
    # The device keeps 1 KiB for itself for each block.
    columns = {"T": [1024, 1024, 64, 64], "S": [0, 0, 49 << 10, (49 << 10) + 1], "BLOCKS_PER_SM": [2, 3, 2, 2]}
    assert kept(fit, **columns) == [True, False, True, False]


def test_registers_are_what_resident_blocks_leave() -> None:
    several = rules.registers_fit("sums", lambda p, c: c.R, lambda p, c: c.T)
    columns = {"R": [128, 129, 64, 65], "T": [256] * 4, "BLOCKS_PER_SM": [2, 2, 4, 4]}
    assert kept(several, **columns) == [True, False, True, False]
    one = rules.block_registers_fit("sums", lambda p, c: c.R, lambda p, c: c.T)
    assert kept(one, R=[64, 65, 255, 256], T=[1024, 1024, 32, 32]) == [True, False, True, False]
    limited = of_gemm.residency_limits_registers(lambda p, c: c.T)
    assert kept(limited, T=[64, 64, 512], BLOCKS_PER_SM=[1, 2, 2]) == [True, False, True]
    assert limited.for_speed


def test_a_multiprocessor_is_kept_busy() -> None:
    warps = of_gemm.enough_warps(lambda p, c: c.T, 8)
    assert kept(warps, T=[128, 128], BLOCKS_PER_SM=[1, 2]) == [False, True]
    assert kept(of_gemm.blocks_run_at_once(), BLOCKS=[0, 20, 10], BLOCKS_PER_SM=[1, 2, 2]) == [
        True,
        True,
        False,
    ]


def test_copies_are_as_wide_and_as_new_as_the_device_can() -> None:
    assert kept(rules.copy_at_most_16_bytes("V", "W"), V=[4, 4, 8], W=[4, 8, 4]) == [True, False, False]
    assert kept(rules.copy_at_most_16_bytes("V"), problem=DOUBLE, V=[2, 4]) == [True, False]
    old = DeviceInfo(name="old GPU", kind="cuda", compute_capability=75)
    assert kept(rules.asynchronous_copies("STAGES"), STAGES=[2, 3]) == [True, True]
    assert kept(rules.asynchronous_copies("STAGES"), old, STAGES=[0, 2]) == [True, False]
    assert kept(rules.access_holds_an_element(), problem=DOUBLE, ACCESS_BYTES=[4, 8]) == [False, True]
    config = SimpleNamespace(ACCESS_BYTES=np.array([4, 8, 16]))
    assert rules.access_elements(DOUBLE, config).tolist() == [1, 1, 2]


def test_lines_are_whole_vectors() -> None:
    rule = of_gemm.divisible_lines({"A": "V", "B": "W"}, lambda p, c: (p.k, p.n + 2))
    assert kept(rule, V=[4, 16, 4], W=[2, 2, 4]) == [True, False, False]
    assert rule.sentence == "stored lines of A are divisible by V, those of B by W"


def test_offsets_stay_within_32_bits() -> None:
    huge = builtin().operation("gemm").problem({"m": 1, "n": 2**30, "k": 1})
    rule = of_gemm.offsets_fit_32_bits(lambda p, c: c.L, "m", "n", "k")
    assert kept(rule, problem=huge, L=[3, 4]) == [True, False]
    assert kept(of_gemm.offsets_fit_32_bits(lambda p, c: c.L, "m", "k"), problem=huge, L=[4]) == [True]


def test_threads_of_a_cpu_have_cores_and_work() -> None:
    assert kept(rules.at_most_cores(), CPU, THREADS=[1, 4, 5]) == [True, True, False]
    unknown = DeviceInfo(name="unknown", kind="cpu")
    assert kept(rules.at_most_cores("JOBS"), unknown, JOBS=[1, 2]) == [True, False]
    work = rules.work_for_each_thread("a row", lambda p, c: p.m)
    assert kept(work, CPU, THREADS=[100, 101]) == [True, False]
    assert work.sentence == "a row for each thread"


def test_vectors_fill_the_cpus_registers() -> None:
    assert kept(rules.vectors_as_wide_as_the_cpu(), CPU, WIDTH=[4, 8, 16]) == [False, True, False]
    assert kept(rules.vectors_as_wide_as_the_cpu("W"), CPU, problem=DOUBLE, W=[4]) == [True]
    sizes = [rules.vector_bytes(DeviceInfo(name="", kind="cpu", vector_bytes=size)) for size in (0, 32, 128)]
    assert sizes == [16, 32, 64]
