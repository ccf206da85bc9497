"""Which vectors of a CPU are used: the widest there are, or narrower ones where the environment says so.

``TUNER_CPU_FEATURES=avx2`` has a CPU with AVX-512 measured as CPUs without it would be: Numba compiles for
AVX2, OpenBLAS and NumPy use nothing wider. Caches, clocks and cores stay those of the machine, which the
device's name says.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field

from tuner.errors import DeviceTrouble, InputError

VARIABLE = "TUNER_CPU_FEATURES"


@dataclass(frozen=True)
class Features:
    """Vectors that are used.

    Attributes:
        title: For people: ``AVX-512``; empty where none is known.
        vector_bytes: Width of the widest register.
        restricted: True where the machine has wider ones.
        architecture: LLVM's name of the CPU that is compiled for; empty for the machine's own.
        environment: Variables that hold a process to these vectors, from before it loads NumPy.
    """

    title: str
    vector_bytes: int
    restricted: bool = False
    architecture: str = ""
    environment: tuple[tuple[str, str], ...] = field(default=())

    @property
    def told(self) -> str:
        """What a device's name says of it; empty where nothing is known."""
        return f"restricted to {self.title}" if self.restricted else self.title


#: Flag of the operating system -> vectors, the widest first.
KNOWN = {
    "avx512f": Features("AVX-512", 64),
    "avx2": Features("AVX2", 32),
    "asimd": Features("NEON", 16),
}
#: What can be asked for. NumPy's names are those of what it dispatches (NumPy, "CPU build options").
RESTRICTIONS = {
    "avx2": Features(
        "AVX2", 32, True, "haswell",
        (
            ("NUMBA_CPU_NAME", "haswell"), ("NUMBA_CPU_FEATURES", ""), ("OPENBLAS_CORETYPE", "Haswell"),
            ("NPY_DISABLE_CPU_FEATURES", "X86_V4 AVX512_ICL AVX512_SPR"),
        ),
    )
}  # fmt: skip


def used(flags: Collection[str]) -> Features:
    """The vectors that are used of a CPU.

    Args:
        flags: As the operating system lists them.

    Raises:
        InputError: The environment asks for vectors that are not known.
        DeviceTrouble: It asks for some that the CPU does not have.
    """
    widest = next((found for flag, found in KNOWN.items() if flag in flags), Features("", 16))
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
