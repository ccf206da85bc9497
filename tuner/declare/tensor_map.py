"""Tensor maps: how the copy engine of sm_90 and later (TMA) fetches boxes of a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.errors import DeclarationError

#: Bytes of the swizzled unit; 0 for none (``CUtensorMapSwizzle``).
SWIZZLES = (0, 32, 64, 128)
#: Bytes that a miss may bring into L2 (``CUtensorMapL2promotion``).
PROMOTIONS = (128, 256)
#: Elements of a box along one dimension (``cuTensorMapEncodeTiled``).
MOST_ELEMENTS = 256
#: Rows of a mapped tensor begin at multiples of this, as the tensor itself does.
ALIGNMENT_BYTES = 16


@dataclass(frozen=True)
class TensorMap:
    """Boxes of a tensor that a kernel copies to or from shared memory, as a kernel's argument.

    A step is given it by its name, as ``const __grid_constant__`` structure of 128 bytes that begins at a
    multiple of 64. What a box has beyond the tensor's edges is read as zeros, and not written. The tensor's
    rows have a multiple of 16 bytes: say so in a constraint.

    Attributes:
        name: By which steps are given it.
        tensor: Name of the tensor.
        box: Elements along each of the tensor's dims, at most 256.
        swizzle: 16-byte chunks are permuted within units of so many bytes: 32, 64, 128; 0: not at all.
        promotion: Bytes that a miss brings into L2, 128 or 256. Of a tensor whose rows begin amid lines of 128
            bytes it is 128: 5 % faster at 1000^3 in bfloat16 on an H200.
    """

    name: str
    tensor: str
    box: tuple[int, ...]
    swizzle: int = 0
    promotion: int = 256

    def __post_init__(self) -> None:
        if self.swizzle not in SWIZZLES:
            known = ", ".join(map(str, SWIZZLES))
            raise DeclarationError(
                f"swizzle of tensor map {self.name!r} is one of {known} bytes, got {self.swizzle!r}"
            )
        if self.promotion not in PROMOTIONS:
            raise DeclarationError(
                f"promotion of tensor map {self.name!r} is 128 or 256 bytes, got {self.promotion!r}"
            )
        known_sizes = [
            size for size in self.box if isinstance(size, int)
        ]  # exports follow others as expressions
        if not 1 <= len(self.box) <= 5 or not all(1 <= size <= MOST_ELEMENTS for size in known_sizes):
            raise DeclarationError(
                f"the box of tensor map {self.name!r} has 1 to {MOST_ELEMENTS} elements along each of up to "
                f"five dims, got {self.box!r}"
            )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TensorMap:
        """Reads the output of ``dataclasses.asdict``."""
        return cls(
            data["name"], data["tensor"], tuple(data["box"]), data["swizzle"], data.get("promotion", 256)
        )
