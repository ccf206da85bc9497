"""Which sizes name a problem, and how its arrays' shapes follow from them.

Whole-number arguments of a kernel are its sizes: ``add(a, b, out, n)``. Each extent of an array is one of
them, or a size of its own. Where two sizes are equal, nothing tells which one an extent is; the author says it.
"""

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

from tuner.declare.launch import ceil_div
from tuner.errors import DeclarationError, InputError

#: Functions that an expression may call -> how a file of declarations spells them.
FUNCTIONS = {"ceil_div": "tuner.ceil_div", "abs": "abs", "min": "min", "max": "max"}


def spelt(text: str, names: Mapping[str, str], what: str) -> str:
    """An expression of Python with its names spelt otherwise.

    Args:
        text: The expression.
        names: What it may name -> how that is spelt: ``n`` as ``p.n``.
        what: What the expression is, for messages: ``a restriction``.

    Raises:
        DeclarationError: It is no expression, or uses a name that is not known here.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        raise DeclarationError(
            f"{what} is an expression of Python, got {text!r}: {error.msg}; correct it"
        ) from None
    spellings = dict(names) | FUNCTIONS
    for node in [node for node in ast.walk(tree) if isinstance(node, ast.Name)]:
        if node.id not in spellings:
            raise DeclarationError(
                f"{what} knows {', '.join(spellings)}, got {node.id!r} in {text!r}; correct it"
            )
        node.id = spellings[node.id]
    return ast.unparse(tree)


@dataclass(frozen=True)
class KernelArgument:
    """An argument of a kernel.

    Attributes:
        name: Its name.
        dtype: Its dtype; empty where a source says none, such as that of a macro.
        shape: Of an array; None for a number.
        value: Of a number.
        output: True for an array that the kernel writes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None = None
    value: float = 0
    output: bool = False

    @property
    def is_size(self) -> bool:
        """True for a whole number of 1 or more."""
        return self.shape is None and self.dtype in ("int32", "int64") and self.value >= 1


class Sizes(NamedTuple):
    """What names a problem.

    Attributes:
        sizes: Dim -> size, in the order in which a problem names them.
        shapes: Array -> its extents over the dims.
        tied: Name of a size that is no dim -> the dim that it always equals.
    """

    sizes: dict[str, int]
    shapes: dict[str, tuple[str, ...]]
    tied: dict[str, str]


def shapes_of(
    arguments: Sequence[KernelArgument], written: Mapping[str, object], free: Collection[str] = (),
    tie: bool = False,
) -> Sizes:  # fmt: skip
    """The sizes and shapes of a kernel's arguments.

    Args:
        arguments: In the kernel's order.
        written: Array -> its extents, as the author wrote them: ``"m k"``, ``("m", "k + 1")``. May be empty.
        free: Names of whole numbers that are no sizes.
        tie: True to take sizes for one where they are equal and nothing tells which of them an extent is.

    Raises:
        InputError: Nothing tells which size an extent is, or an extent is not as the author says.
        DeclarationError: What the author says cannot be read.
    """
    whole = [argument for argument in arguments if argument.is_size and argument.name not in free]
    sizes = {argument.name: int(argument.value) for argument in whole}
    arrays = {argument.name: argument.shape for argument in arguments if argument.shape is not None}
    shapes = read_shapes(written, arrays)
    for name, extents in shapes.items():
        _learn_names(name, extents, arrays[name], sizes)
    for name, extents in shapes.items():
        _check(name, extents, arrays[name], sizes)
    tied: dict[str, str] = {}
    for name, shape in arrays.items():
        if name not in shapes:
            shapes[name] = _guessed(name, shape, sizes, tied if tie else None)
    if not sizes:
        raise InputError(
            "a problem has a size, and none of these arguments has one: no array with more than one element, "
            "no whole number; pass one"
        )
    return Sizes({name: size for name, size in sizes.items() if name not in tied}, shapes, tied)


def read_shapes(written: Mapping[str, object], arrays: Collection[str]) -> dict[str, tuple[str, ...]]:
    """What an author says of shapes, extent by extent.

    Raises:
        InputError: There is no such array.
        DeclarationError: A shape cannot be read.
    """
    for name in written:
        if name not in arrays:
            raise InputError(f"shapes= names arrays ({', '.join(arrays)}), got {name!r}; correct it")
    return {name: _extents(name, text) for name, text in written.items()}


def _extents(name: str, text: object) -> tuple[str, ...]:
    if isinstance(text, str):
        words = text.split()
        plain = all(word.isidentifier() or word.isdecimal() for word in words)
        parts = text.split(",") if "," in text else words if plain else [text]
        return tuple(part.strip() for part in parts if part.strip())
    if isinstance(text, Sequence) and all(isinstance(extent, str | int) for extent in text):
        return tuple(str(extent) for extent in text)
    raise DeclarationError(
        f'the shape of an array is written like "m k" or ("m", "k + 1"), got {text!r} for {name}; correct it'
    )


def _learn_names(name: str, extents: tuple[str, ...], shape: tuple[int, ...], sizes: dict[str, int]) -> None:
    """Extents that are mere names give these names their sizes."""
    if len(extents) != len(shape):
        raise InputError(
            f"shapes= gives {name} {len(extents)} dims ({' '.join(extents)}), the array has {len(shape)}: "
            f"{shape}; correct one of them"
        )
    for extent, size in zip(extents, shape, strict=True):
        if extent.isidentifier():
            sizes.setdefault(extent, size)


def _check(name: str, extents: tuple[str, ...], shape: tuple[int, ...], sizes: Mapping[str, int]) -> None:
    """Refuses extents that do not hold for the array."""
    for text, size in zip(extents, shape, strict=True):
        python = spelt(text, {dim: dim for dim in sizes}, f"the shape of {name}")
        extent = int(eval(python, {"tuner": SimpleNamespace(ceil_div=ceil_div)}, dict(sizes)))
        if extent != size:
            raise InputError(
                f"{name} has shape {shape}, and shapes= says {text} = {extent} where it has {size}; correct "
                "one of them"
            )


def _guessed(
    array: str, shape: tuple[int, ...], sizes: dict[str, int], tied: dict[str, str] | None
) -> tuple[str, ...]:
    """Extents of an array that the author says nothing of; each of no known size becomes a size of its own."""
    known, extents = dict(sizes), []
    for axis, size in enumerate(shape):
        fitting = [name for name, value in known.items() if value == size]
        if len(fitting) > 1 and tied is None:
            example = " ".join(fitting[: len(shape)])
            raise InputError(
                f"{' and '.join(fitting)} are equal here ({size}), so that nothing tells which of them axis "
                f"{axis} of {array} is; say it: shapes={{{array!r}: {example!r}, ...}}, or give sizes that "
                "differ"
            )
        if not fitting and size > 1:
            fitting = [next(name for at in range(1, 99) if (name := f"n{at if at > 1 else ''}") not in sizes)]
            sizes[fitting[0]] = size
        if tied is not None and fitting:
            tied |= dict.fromkeys(fitting[1:], fitting[0])
        extents.append(fitting[0] if fitting else "1")
    return tuple(extents)
