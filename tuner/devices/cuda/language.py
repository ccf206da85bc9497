"""CUDA C++ as a language of kernels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel, Rendered
from tuner.declare.space import Config, Parameter
from tuner.devices.protocol import Arrays, Compiler, Language, Run
from tuner.extras import load

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


def macros(constants: Mapping[str, Any]) -> list[str]:
    """Writes constants as macros rather than constexpr, because sources may use them in #if."""
    return [
        f"#define {name} {int(value) if isinstance(value, bool) else value}"
        for name, value in constants.items()
    ]


def _config_macros(parameters: Sequence[Parameter], config: Config) -> list[str]:
    """Writes a config as macros; a word is one of the numbered words of its parameter."""
    values: dict[str, Any] = {}
    for parameter in parameters:
        value, name = config[parameter.name], parameter.name
        if isinstance(value, str):
            values |= {f"{name}_{word}": number for number, word in enumerate(parameter.values)}
            value = f"{name}_{value}"
        values[name] = value
    return macros(values)


class CudaLanguage(Language):
    """Kernels as ``.cu`` files, compiled by NVRTC."""

    name = target = kind = "cuda"
    suffix = ".cu"
    has_launch = True
    array_library = "CuPy"
    compiler_packages = (("nvidia-cuda-nvrtc", "NVRTC {1}.{2}"), ("nvidia-cuda-nvrtc-cu12", "NVRTC {1}.{2}"))

    def measured_text(self, text: str) -> str:
        """Its tokens."""
        return cpp_tokens(text)

    def rendered(self, kernel: Kernel, constants: Mapping[str, Any], config: Config, finishing: str) -> str:
        """Macros, then the source."""
        return "\n".join([*macros(constants), *_config_macros(kernel.parameters, config), "", kernel.text])

    def compiler(self) -> Compiler:
        """NVRTC's, with a cache of cubins."""
        return cast(Compiler, load("tuner.devices.cuda.nvrtc:NvrtcCompiler")())

    def bind(self, rendered: Rendered, code: bytes, arrays: Arrays, device: DeviceInfo) -> Run:
        """Loads the cubin."""
        return cast(Run, load("tuner.devices.cuda.launching:LoadedKernel")(rendered, code, arrays, device))


LANGUAGE = CudaLanguage()
