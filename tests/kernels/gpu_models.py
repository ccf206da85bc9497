"""Limits of some GPUs, for tests without one.

From the driver's device attributes as the CUDA C++ Programming Guide lists them by compute capability
(table of technical specifications), and the boards' data sheets.
"""

from dataclasses import replace

from fixtures.records import BOARD

H200 = replace(BOARD, memory_bytes=141 * 10**9)
A100 = replace(
    H200, name="NVIDIA A100-SXM4-80GB", architecture="sm_80", compute_capability=80, memory_bytes=80 * 10**9,
    sm_count=108, shared_bytes_per_block=166_912, shared_bytes_per_sm=167_936, l2_bytes=40 << 20,
)  # fmt: skip
RTX_4090 = replace(
    A100, name="NVIDIA GeForce RTX 4090", architecture="sm_89", compute_capability=89,
    memory_bytes=24 * 10**9, sm_count=128, max_threads_per_sm=1536, shared_bytes_per_block=101_376,
    shared_bytes_per_sm=102_400, l2_bytes=72 << 20,
)  # fmt: skip
GPUS = (H200, A100, RTX_4090)
#: Before asynchronous copies: a GPU that some kernels must refuse.
T4 = replace(
    A100, name="Tesla T4", architecture="sm_75", compute_capability=75, memory_bytes=16 * 10**9, sm_count=40,
    max_threads_per_sm=1024, shared_bytes_per_block=65_536, shared_bytes_per_sm=65_536, l2_bytes=4 << 20,
)  # fmt: skip
