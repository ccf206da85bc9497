"""Limits of some GPUs, for tests without one.

From the driver's device attributes as the CUDA C++ Programming Guide lists them by compute capability
(table of technical specifications), and the boards' data sheets.
"""

from dataclasses import replace

from tuner.declare.hardware import DeviceInfo

H200 = DeviceInfo(
    name="NVIDIA H200", kind="cuda", architecture="sm_90", compute_capability=90,
    memory_bytes=141 * 10**9, sm_count=132, warp_size=32, max_threads_per_block=1024, max_threads_per_sm=2048,
    shared_bytes_per_block=232_448, shared_bytes_per_sm=233_472, registers_per_block=65_536,
    registers_per_thread=255, l2_bytes=60 << 20,
)  # fmt: skip
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
