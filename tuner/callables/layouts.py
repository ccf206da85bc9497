"""How an array lies in memory, as the letters of a layout: so that most views need no copy."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.callables.arrays import Operand


@dataclass(frozen=True)
class Placed:
    """Where one tensor of a problem comes from.

    Attributes:
        argument: Name of the caller's array.
        turned: True where its transpose is what lies row-major in memory, so that a view of it is passed.
        copied: Why a copy is passed (for an output: why the result is copied there); empty where none is.
    """

    argument: str
    turned: bool = False
    copied: str = ""

    def __str__(self) -> str:
        if self.argument == "result":
            return "a new array"
        said = f"the transpose of {self.argument}" if self.turned else self.argument
        return f"a copy of {said} ({self.copied})" if self.copied else f"{said} as it lies"


def is_row_major(operand: Operand) -> bool:
    """Whether elements lie in order and without gaps; axes of size 1 may have any stride."""
    expected = operand.itemsize
    for size, step in zip(reversed(operand.shape), reversed(operand.strides), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


def is_dense(operand: Operand) -> bool:
    """Whether elements lie without gaps, row-major or column-major."""
    return is_row_major(operand) or is_row_major(turned(operand))


def turned(operand: Operand) -> Operand:
    """The transposed view of two axes."""
    return Operand(
        operand.family, operand.shape[::-1], operand.strides[::-1], operand.dtype, operand.itemsize,
        operand.device, operand.aligned, operand.writable, operand.plain,
    )  # fmt: skip


def placed(argument: str, operand: Operand) -> Placed:
    """How to hand an array of one or two axes to a kernel, which takes dense and aligned arrays only."""
    if is_row_major(operand):
        return Placed(argument, copied=_why_unaligned(operand))
    if operand.ndim == 2 and is_row_major(turned(operand)):
        return Placed(argument, True, _why_unaligned(operand))
    # The copy keeps the order of the axes in memory, so that it reads in order.
    across = operand.ndim == 2 and abs(operand.strides[0]) < abs(operand.strides[1])
    return Placed(argument, across, f"strides {operand.strides} leave gaps, kernels take dense arrays")


def _why_unaligned(operand: Operand) -> str:
    return "" if operand.aligned else "it begins at an address that kernels cannot read"


def letter(of: Placed) -> str:
    """``n`` where an operand is stored as it is used, ``t`` where its transpose is."""
    return "t" if of.turned else "n"


def flipped(of: Placed) -> str:
    """The letter of the operand's transpose."""
    return "n" if of.turned else "t"
