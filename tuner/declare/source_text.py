"""What of a kernel's source reaches the compiler: its text without comments, docstrings and layout.

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
    """CUDA C++ without comments and layout: one space between tokens, one line per directive.

    White space inside a directive is kept as one space, since ``#define F(x)`` and ``#define F (x)`` differ.
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
    """Python source as its syntax tree without docstrings: equal in every Python version that runs here.

    Raises:
        SyntaxError: It is not Python.
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
    # Fields that are empty are left out: later Python versions add some.
    told = " ".join(f"{name}={_syntax_of(value)}" for name, value in fields.items())
    return f"({type(node).__name__} {told})"


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(getattr(statement.value, "value", None), str)


def measured_text(text: str, target: str) -> str:
    """The part of a source that a measurement depends on.

    Args:
        text: The source, with everything that it includes.
        target: ``cuda`` or ``cpu``.

    Returns:
        A text that is equal for sources that differ only in comments, docstrings and layout. A source that
        cannot be parsed is returned as it is.
    """
    if target == "cuda":
        return cpp_tokens(text)
    try:
        return python_syntax(text)
    except (SyntaxError, ValueError):
        return text
