"""Describes a device and its limits, as plain data that constraints, records and lookups share."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

#: Registers per thread come in multiples of the first number; the second is the number of schedulers.
REGISTER_STEP = 8
SCHEDULERS = 4


@dataclass(frozen=True)
class DeviceInfo:
    """Identity and limits of one device.

    Fields that do not apply to a kind of device are 0 or empty. Limits come from the driver (CUDA) or
    the operating system (CPU), never from a table of ours.

    Attributes:
        name: Marketing name, e.g. ``NVIDIA H200`` or ``AMD EPYC (AVX-512, 2 cores)``.
        kind: ``cuda`` or ``cpu`` (a ``fake`` device takes the kind that it stands for).
        uuid: Unique id of the board or MIG instance; for a CPU, a hash of model, features and cores.
        architecture: ``sm_90`` for a GPU; LLVM's name of the CPU, e.g. ``znver5``.
        driver: Driver version (CUDA) or operating system release (CPU).
        runtime: CUDA version that the driver supports, or the Numba version.
        memory_bytes: Size of the device's memory.
        compute_capability: ``90`` for 9.0; 0 for a CPU.
        sm_count: Multiprocessors.
        warp_size: Threads of a warp.
        max_threads_per_block: Threads.
        max_threads_per_sm: Threads.
        shared_bytes_per_block: Shared memory that a block may have after opting in.
        shared_bytes_per_sm: Shared memory of a multiprocessor.
        registers_per_block: 32-bit registers.
        registers_per_thread: 32-bit registers that a thread can address.
        l2_bytes: Last-level cache: L2 of a GPU, L3 of a CPU.
        l1_bytes: First-level data cache of one CPU core.
        cores: CPU cores that this process may use.
        vector_bytes: Width of the widest CPU vector register in bytes.
    """

    name: str
    kind: str
    uuid: str = ""
    architecture: str = ""
    driver: str = ""
    runtime: str = ""
    memory_bytes: int = 0
    compute_capability: int = 0
    sm_count: int = 0
    warp_size: int = 0
    max_threads_per_block: int = 0
    max_threads_per_sm: int = 0
    shared_bytes_per_block: int = 0
    shared_bytes_per_sm: int = 0
    registers_per_block: int = 0
    registers_per_thread: int = 0
    l2_bytes: int = 0
    l1_bytes: int = 0
    cores: int = 0
    vector_bytes: int = 0

    def registers_left(self, threads: Any, blocks: Any) -> Any:
        """Returns the 32-bit registers left to a thread if this many blocks share a multiprocessor.

        Registers are allocated in eights per thread, and evenly among a multiprocessor's four schedulers, which
        share its warps (CUDA's occupancy calculator: register and warp allocation granularity).

        Args:
            threads: Threads of a block; a number or an array.
            blocks: Resident blocks of a multiprocessor; a number or an array.
        """
        warps = -(-threads // self.warp_size) * blocks
        slots = -(-warps // SCHEDULERS) * SCHEDULERS * self.warp_size
        return self.registers_per_block // slots // REGISTER_STEP * REGISTER_STEP

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> DeviceInfo:
        """Reads the output of `to_json`. It ignores unknown fields, which other versions may write."""
        known = {field.name for field in fields(cls)}
        return cls(**{key: value for key, value in data.items() if key in known})
