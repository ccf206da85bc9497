"""The part of a kernel's source that affects machine code: the text without comments, docstrings and layout.

Two texts with the same tokens compile to the same code, so a measurement of one holds for the other.
"""

from __future__ import annotations

import ast
import re
from typing import Any

#: Comments, literals and operators of C++; whitespace ends a token, and a newline ends a directive.
_CPP_TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/
    |R"(?P<fence>[^(\s]*)\(.*?\)(?P=fence)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'
    |[A-Za-z_]\w*|\.?\d(?:[eEpP][+-]|'?[\w.])*
    |<<=|>>=|\.\.\.|\+\+|--|->|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|::|\#\#
    |\n|[^\S\n]+|.""",
    re.DOTALL | re.VERBOSE,
)


def cpp_tokens(text: str) -> str:
    """Returns CUDA C++ without comments and layout: one space between tokens, one line for each directive.

    Whitespace inside a directive is kept as one space, because ``#define F(x)`` and ``#define F (x)`` differ.
    """
    pieces: list[str] = []
    directive, line_start = False, True
    for match in _CPP_TOKEN.finditer(text.replace("\\\n", "")):
        token = match[0]
        if token == "\n":
            if directive:
                pieces.append("\n")
            directive, line_start = False, True
        elif token.isspace() or token.startswith(("//", "/*")):
            if directive and not pieces[-1].endswith(" "):
                pieces.append(" ")
        else:
            if token == "#" and line_start:
                directive = True
                pieces.append("\n")
            pieces.append(token if directive else f"{token} ")
            line_start = False
    return "\n".join(line.strip() for line in "".join(pieces).splitlines() if line.strip())


def python_syntax(text: str) -> str:
    """Returns the syntax tree of a Python source without docstrings, equal in all supported Python versions.

    Raises:
        SyntaxError: The text is not Python.
    """
    return _syntax_of(ast.parse(text))


def _syntax_of(node: Any) -> str:
    if isinstance(node, list):
        return f"[{' '.join(map(_syntax_of, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = {name: value for name, value in ast.iter_fields(node) if value not in (None, [])}
    if isinstance(
        node, ast.Module
    ):  # a source follows its includes, so that several files' docstrings are in it
        fields["body"] = [each for each in node.body if not _is_text(each)]
    elif isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node, clean=False):
        fields["body"] = fields["body"][1:]
    # Empty fields are left out, because later Python versions add some.
    told = " ".join(f"{name}={_syntax_of(value)}" for name, value in fields.items())
    return f"({type(node).__name__} {told})"


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(getattr(statement.value, "value", None), str)


def measured_text(text: str, target: str) -> str:
    """Returns the part of a source on which a measurement depends.

    Args:
        text: The source with its includes.
        target: ``cuda`` or ``cpu``.

    Returns:
        Equal texts for sources that differ only in comments, docstrings and layout. A source that cannot be
        parsed is returned unchanged.
    """
    if target == "cuda":
        return cpp_tokens(text)
    try:
        return python_syntax(text)
    except (SyntaxError, ValueError):
        return text
