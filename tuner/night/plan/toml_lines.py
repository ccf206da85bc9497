"""Finds the line of each key of a TOML text, which the standard parser does not report."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

#: A path in a parsed document: keys of tables, and numbers of elements of arrays.
KeyPath = tuple[str | int, ...]

_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_DOTTED = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_BLANK = re.compile(r"(?:\s+|#[^\n]*)+")
_HEADER = re.compile(rf"(\[\[?)[ \t]*({_DOTTED})[ \t]*\]\]?")
_ASSIGNMENT = re.compile(rf"({_DOTTED})[ \t]*=[ \t]*")
#: A piece of a value that may contain characters that look like its end, or one other character.
_PIECE = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}' r"|'''.*?'{3,5}" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'" r"|\#[^\n]*" r"|.",
    re.DOTALL,
)


def key_lines(text: str) -> dict[KeyPath, int]:
    """Finds the line of every key and table header.

    Args:
        text: A valid TOML document; of an invalid one, the part before the mistake counts.

    Returns:
        Path -> line, counted from 1. Elements of arrays of tables have their number (from 0) in the path:
        ``("problems", 1, "shape")``. Keys inside inline tables are not listed; see `line_of`.
    """
    lines: dict[KeyPath, int] = {}
    elements: dict[KeyPath, int] = {}
    table: KeyPath = ()
    line, counted = 1, 0
    for position, opening, dotted in _statements(text.replace("\r\n", "\n")):
        line += text.replace("\r\n", "\n").count("\n", counted, position)
        counted = position
        names = _names(dotted)
        if opening == "[[":
            base = _within((), names, elements, last=False)
            elements[base] = elements.get(base, -1) + 1
            table = (*base, elements[base])
            lines.setdefault(base, line)
            lines[table] = line
        elif opening == "[":
            table = _within((), names, elements)
            _put(lines, (), table, line)
        else:
            _put(lines, table, (*table, *names), line)
    return lines


def line_of(lines: dict[KeyPath, int], path: KeyPath) -> int:
    """Returns the line of a key, else of the nearest table or key around it; 1 if there is none."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 1


def _statements(text: str) -> Iterator[tuple[int, str, str]]:
    """Yields position, ``[``, ``[[`` or nothing, and the dotted key of each header and assignment."""
    position = 0
    while True:
        if blank := _BLANK.match(text, position):
            position = blank.end()
        if header := _HEADER.match(text, position):
            yield position, header[1], header[2]
            position = header.end()
        elif assignment := _ASSIGNMENT.match(text, position):
            yield position, "", assignment[1]
            position = _end_of_value(text, assignment.end())
        else:
            return


def _end_of_value(text: str, position: int) -> int:
    """Returns the position of the line break, or the end, that closes a value: outside brackets and strings."""
    depth = 0
    while piece := _PIECE.match(text, position):
        if piece[0] == "\n" and depth <= 0:
            break
        depth += piece[0] in ("[", "{")
        depth -= piece[0] in ("]", "}")
        position = piece.end()
    return position


def _names(dotted: str) -> tuple[str, ...]:
    """Splits a dotted key as TOML does, quotes and escapes included."""
    try:
        value = tomllib.loads(f"{dotted} = 0")
    except tomllib.TOMLDecodeError:
        return (dotted,)
    names = []
    while isinstance(value, dict):
        name, value = next(iter(value.items()))
        names.append(name)
    return tuple(names)


def _within(base: KeyPath, names: tuple[str, ...], elements: dict[KeyPath, int], last: bool = True) -> KeyPath:
    """Returns a header's path; an array of tables means its latest element (the last name if `last`)."""
    path = base
    for index, name in enumerate(names):
        path = (*path, name)
        if path in elements and (last or index < len(names) - 1):
            path = (*path, elements[path])
    return path


def _put(lines: dict[KeyPath, int], base: KeyPath, path: KeyPath, line: int) -> None:
    """Stores the line of a path, and of the tables between it and `base` that a dotted key implies."""
    for length in range(len(base) + 1, len(path) + 1):
        lines.setdefault(path[:length], line)
