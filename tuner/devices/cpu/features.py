"""Selects the vectors of a CPU: the widest available, or narrower ones if the environment requests them.

With ``TUNER_CPU_FEATURES=avx2`` a CPU with AVX-512 is measured like CPUs without it: Numba compiles for AVX2,
and OpenBLAS and NumPy use nothing wider. Caches, clocks and cores remain those of the machine; the device's
name says so.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field

from tuner.errors import DeviceTrouble, InputError

VARIABLE = "TUNER_CPU_FEATURES"


@dataclass(frozen=True)
class InstructionSet:
    """The vectors in use.

    Attributes:
        title: Name for people: ``AVX-512``; empty if unknown.
        vector_bytes: Width of the widest register.
        restricted: True if the machine has wider ones.
        architecture: LLVM's name of the CPU to compile for; empty for the machine's own.
        environment: Environment variables that restrict a process to these vectors; set before it loads NumPy.
    """

    title: str
    vector_bytes: int
    restricted: bool = False
    architecture: str = ""
    environment: tuple[tuple[str, str], ...] = field(default=())

    @property
    def told(self) -> str:
        """The part of a device's name that describes them; empty if unknown."""
        return f"restricted to {self.title}" if self.restricted else self.title


#: Flag of the operating system -> vectors, the widest first.
KNOWN = {
    "avx512f": InstructionSet("AVX-512", 64),
    "avx2": InstructionSet("AVX2", 32),
    "asimd": InstructionSet("NEON", 16),
}
#: Allowed restrictions. NumPy's names are those of its dispatch targets (NumPy, "CPU build options").
RESTRICTIONS = {
    "avx2": InstructionSet(
        "AVX2", 32, True, "haswell",
        (
            ("NUMBA_CPU_NAME", "haswell"), ("NUMBA_CPU_FEATURES", ""), ("OPENBLAS_CORETYPE", "Haswell"),
            ("NPY_DISABLE_CPU_FEATURES", "X86_V4 AVX512_ICL AVX512_SPR"),
        ),
    )
}  # fmt: skip


def used(flags: Collection[str]) -> InstructionSet:
    """Returns the vectors to use on a CPU.

    Args:
        flags: CPU flags as the operating system lists them.

    Raises:
        InputError: The environment requests unknown vectors.
        DeviceTrouble: It requests vectors that the CPU does not have.
    """
    widest = next((found for flag, found in KNOWN.items() if flag in flags), InstructionSet("", 16))
    asked = os.environ.get(VARIABLE, "").strip().lower()
    if not asked:
        return widest
    if asked not in RESTRICTIONS:
        raise InputError(
            f"{VARIABLE} is {' or '.join(RESTRICTIONS)}, got {asked!r}; unset it for all there are"
        )
    if asked not in flags:
        raise DeviceTrouble(f"{VARIABLE}={asked} needs a CPU with these vectors, this one has none; unset it")
    return RESTRICTIONS[asked] if RESTRICTIONS[asked].vector_bytes < widest.vector_bytes else widest
