"""Reads from a CUDA source what a function takes, without compiling it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tuner.declare.functions import functions_of
from tuner.errors import DeclarationError

#: C++ type -> dtype. Unsigned numbers are passed as signed ones of the same size: sizes are below 2^31.
TYPES = {
    "float": "float32", "double": "float64", "half": "float16", "__half": "float16", "int": "int32",
    "int32_t": "int32", "unsigned": "int32", "uint32_t": "int32", "unsigned int": "int32", "long": "int64",
    "long long": "int64", "int64_t": "int64", "unsigned long": "int64", "unsigned long long": "int64",
    "size_t": "int64", "uint64_t": "int64", "unsigned char": "uint8", "uint8_t": "uint8",
}  # fmt: skip
_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_QUALIFIERS = re.compile(r"\b(?:const|__restrict__|__restrict|restrict|volatile|__grid_constant__)\b")


@dataclass(frozen=True)
class Taken:
    """What a kernel's function takes in one place.

    Attributes:
        name: Its name.
        dtype: Its dtype; empty if the type's name says none, such as that of a macro.
        pointer: True for an array.
        written: True for an array that is not ``const``.
    """

    name: str
    dtype: str
    pointer: bool
    written: bool


def taken_by(source: str, function: str) -> tuple[Taken, ...]:
    """What a ``__global__`` function takes, in order.

    Raises:
        DeclarationError: There is no such function, or it takes what cannot be read.
    """
    text = _COMMENTS.sub(" ", source)
    head = re.search(rf"__global__[^;{{}}]*?\b{re.escape(function)}\s*\(([^)]*)\)", text)
    if head is None:
        there = ", ".join(functions_of(text, "cuda") or ()) or "none"
        raise DeclarationError(
            f"the source has a __global__ function {function!r}, the name that was given; it has {there}; "
            "give the name of one"
        )
    return tuple(_taken(each, function) for each in head[1].split(",") if each.strip())


def _taken(text: str, function: str) -> Taken:
    plain = " ".join(_QUALIFIERS.sub(" ", text).replace("*", " * ").replace("&", " & ").split())
    found = re.fullmatch(r"(.*?)(\s\*)?\s(\w+)(\s*\[\s*\])?", plain)
    if found is None or "*" in found[1] or "&" in plain:
        raise DeclarationError(
            f"a kernel takes pointers and numbers, {function} takes {text.strip()!r}; pass it as one of them"
        )
    pointer = bool(found[2] or found[4])
    constant = re.search(r"\bconst\b[^*]*\*|\bconst\b[^*\[]*\[", text) is not None
    return Taken(found[3], TYPES.get(found[1].strip(), ""), pointer, pointer and not constant)


def callable_from_c(source: str, function: str) -> str:
    """The source with ``extern "C"`` before the function, which keeps its name as it is."""
    # Comments become blanks of the same length, so that places stay what they are.
    plain = _COMMENTS.sub(lambda found: " " * len(found[0]), source)
    head = re.search(rf"__global__[^;{{}}]*?\b{re.escape(function)}\s*\(", plain)
    if head is None or re.search(r'extern\s+"C"\s*(?:\{[^}]*)?$', plain[: head.start()]):
        return source
    return f'{source[: head.start()]}extern "C" {source[head.start() :]}'
