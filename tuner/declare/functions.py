"""Finds the functions that a kernel's source defines, without compiling it."""

from __future__ import annotations

import ast
import re

_GLOBAL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(")


def names(text: str, target: str, function: str) -> bool:
    """True if a CUDA source calls or defines `function`, also after a macro, or pastes tokens that may."""
    return target == "cuda" and bool(re.search(rf"\b{re.escape(function)}\s*\(|##", text))


def functions_of(text: str, target: str) -> list[str] | None:
    """Names that can be called in a source, in order; None if they cannot be determined."""
    if target == "cuda":
        return _GLOBAL.findall(text)
    try:
        body = ast.walk(ast.parse(text))
    except (SyntaxError, ValueError):
        return None
    found: list[str] = []
    for each in body:
        if isinstance(each, ast.FunctionDef):
            found.append(each.name)
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            found.append(each.id)
        elif isinstance(each, ast.alias):
            found.append(each.asname or each.name)
    return found
