"""Python that Numba compiles, as a language of kernels."""

import ast
from collections.abc import Mapping
from typing import Any, cast

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel, Rendered
from tuner.declare.space import Config
from tuner.devices.protocol import Arrays, Compiler, Language, Run
from tuner.extras import load


def _syntax_of(node: Any) -> str:
    """A syntax tree without docstrings, equal in all supported Python versions."""
    if isinstance(node, list):
        return f"[{' '.join(map(_syntax_of, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = {name: value for name, value in ast.iter_fields(node) if value not in (None, [])}
    if isinstance(node, ast.Module):
        # A source follows its includes, so that several files' docstrings are in it.
        fields["body"] = [statement for statement in node.body if not _is_text(statement)]
    elif isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node, clean=False):
        fields["body"] = fields["body"][1:]
    # Empty fields are left out, because later Python versions add some.
    texts = " ".join(f"{name}={_syntax_of(value)}" for name, value in fields.items())
    return f"({type(node).__name__} {texts})"


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(getattr(statement.value, "value", None), str)


class NumbaLanguage(Language):
    """Kernels as ``.numba.py`` files, compiled by Numba."""

    name, target, kind = "numba", "cpu", "cpu"
    suffix = ".numba.py"
    has_launch = False
    array_library = "NumPy"
    compiler_packages: tuple[tuple[str, str], ...] = (("numba", "Numba {0}"),)

    def measured_text(self, text: str) -> str:
        """Its syntax tree without docstrings."""
        try:
            return _syntax_of(ast.parse(text))
        except (SyntaxError, ValueError):
            return text

    def rendered(self, kernel: Kernel, constants: Mapping[str, Any], config: Config, finishing: str) -> str:
        """Assignments, then the source, and what finishes the result behind it."""
        lines = [f"{name} = {value!r}" for name, value in {**constants, **config}.items()]
        return "\n".join([*lines, "", kernel.text, *(["", "", finishing] if finishing else [])])

    def compiler(self) -> Compiler:
        """Numba's, whose machine code lies beside the rendered modules."""
        return cast(Compiler, load("tuner.devices.cpu.numba:NumbaCompiler")())

    def bind(self, rendered: Rendered, code: bytes, arrays: Arrays, device: DeviceInfo) -> Run:
        """Imports the rendered module; its machine code comes from Numba's cache."""
        return cast(Run, load("tuner.devices.cpu.numba:bound")(rendered, arrays))


LANGUAGE = NumbaLanguage()
