"""The plain kernel behind a kernel that does not take every input: it computes what the other one leaves."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tuner.declare.space import Config
from tuner.errors import DeclarationError

#: Name of the function that a fallback becomes.
ENTRY = "fallback"


@dataclass(frozen=True)
class Fallback:
    """A plain kernel of the same operation, launched last: it computes if a word in the workspace is not 0.

    Its result is then its own, to the bit.

    Attributes:
        name: Name of the kernel, of the same operation and target, whose run is one launch without padding.
        config: Config of the other kernel -> the plain kernel's, with all parameters.
        asked: Region of the workspace that begins with the 32-bit word; the steps before set it.
        kernel: The kernel of that name; set by the catalogue.
        among: All plain kernels of the operation and target; set by the catalogue.
    """

    name: str
    config: Callable[[Any], Mapping[str, Any]]
    asked: str
    kernel: Any = field(default=None, repr=False)
    among: tuple[Any, ...] = field(default=(), repr=False)

    def told(self, config: Any) -> str:
        """Kernel and config in words; `read` understands them."""
        return " ".join([self.name, *(f"{name}={value}" for name, value in self.config(config).items())])

    def to(self, kernel: Any, config: Mapping[str, Any]) -> Fallback:
        """The same with another plain kernel, of the same operation and target, and this config of it."""
        return replace(self, name=kernel.name, config=lambda c: config, kernel=kernel)

    def read(self, told: str, problem: Any, device: Any) -> Fallback:
        """The fallback that `told` put into words, if it may be used for this problem; else this one.

        Args:
            told: Kernel and config; empty for none.
            problem: The problem, which may be another one than it was told of.
            device: Where.
        """
        name, *values = told.split() or [""]
        kernel = next((each for each in self.among if each.name == name), None)
        if kernel is None:
            return self
        written = dict(each.split("=", 1) for each in values)
        config = {
            parameter.name: value
            for parameter in kernel.parameters
            for value in parameter.values
            if written.get(parameter.name) == str(value)
        }
        if not len(config) == len(kernel.parameters) == len(written):
            return self
        if not kernel.allows(problem, device, Config(config)) or beyond_one(
            kernel.launch(problem, Config(config))
        ):
            return self
        return self.to(kernel, config)


def beyond_one(launch: Any) -> bool:
    """Whether a plain kernel's run is more than one launch that takes the tensors as they are."""
    return bool(launch.padded or launch.pieces or launch.steps)


def guarded(text: str, entry: str) -> str:
    """A kernel's source whose function is ``fallback``, and returns at once unless its first argument asks.

    Args:
        text: CUDA C++ in which one function is named `entry`.
        entry: Its name.

    Raises:
        DeclarationError: It cannot be found.
    """
    head = re.compile(rf'(extern\s+"C"\s+__global__[^;{{}}]*?)\b{re.escape(entry)}\s*\(')
    found = head.search(text)
    body = -1 if found is None else text.find("{", _closing(text, found.end()))
    if found is None or body < 0:
        raise DeclarationError(
            f'a fallback\'s source has an extern "C" __global__ function {entry!r}, found none; name it so'
        )
    opened = f"{found[1]}{ENTRY}(const unsigned* __restrict__ asked, "
    before, parameters = text[: found.start()], text[found.end() : body + 1]
    return f"{before}{opened}{parameters}\n    if (!*asked) return;{text[body + 1 :]}"


def _closing(text: str, start: int) -> int:
    """Where the parenthesis closes that opened before `start`."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if not depth:
            return place
    return len(text)


def behind(text: str, plain: str, entry: str) -> str:
    """A source with its fallback's behind it, in a namespace, the macros of the first forgotten.

    Args:
        text: The rendered source of the kernel that falls back.
        plain: The rendered source of the plain kernel.
        entry: Function of the plain kernel.

    Raises:
        DeclarationError: See `guarded`.
    """
    macros = dict.fromkeys(re.findall(r"^#define (\w+)", text, re.MULTILINE))
    used = f"using {ENTRY}_kernel::{ENTRY};"
    forgotten = [f"#undef {name}" for name in macros]
    return "\n".join(
        [text, "", *forgotten, "", f"namespace {ENTRY}_kernel {{", guarded(plain, entry), "}", used, ""]
    )
