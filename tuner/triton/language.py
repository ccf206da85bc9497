"""Triton as a language of kernels. Triton itself is loaded where something is compiled."""

from __future__ import annotations

import importlib.metadata
import json
import math
from dataclasses import replace
from functools import cache
from typing import cast

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Rendered
from tuner.declare.launch import Launch, Step, Workspace
from tuner.declare.problem import Problem
from tuner.devices.cpu.language import NumbaLanguage
from tuner.devices.protocol import Arrays, Compiler, Run
from tuner.extras import load

#: Options of Triton's compiler that a config may set, beside the arguments that are constants.
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")


@cache
def version() -> str:
    """Version of the Triton that is installed; empty where none is."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return ""


class TritonLanguage(NumbaLanguage):
    """Kernels as ``.triton.py`` files: functions under ``triton.jit``, compiled by Triton.

    Parameters are arguments that are ``tl.constexpr``, or Triton's options ``num_warps``, ``num_stages``,
    ``num_ctas`` and ``maxnreg``. The block of a launch is ``32 * num_warps``.
    """

    name, target, kind = "triton", "triton", "cuda"
    suffix = ".triton.py"
    has_launch = True
    by_sizes = True
    array_library = "CuPy"
    compiler_packages = (("triton", "Triton {0}"),)

    def measured_text(self, text: str) -> str:
        """Triton's version, and the syntax tree without docstrings."""
        return f"Triton {version()}\n{super().measured_text(text)}"

    def compiler(self) -> Compiler:
        """Triton's, with the cache of cubins; its interpreter under ``TRITON_INTERPRET=1``."""
        return cast(Compiler, load("tuner.triton.compiler:TritonCompiler")())

    def loadable(self, rendered: Rendered, code: bytes) -> tuple[Rendered, bytes]:
        """The launch as Triton compiled it, which stands before the cubin, and the cubin."""
        line, _, cubin = code.partition(b"\n")
        about, declared = json.loads(line), rendered.launch
        assert declared is not None, "the declaration has a launch"
        # A program of Triton's is a cluster, whose shape the cubin tells the driver.
        grid, scratch = (declared.grid[0] * about.get("ctas", 1), *declared.grid[1:]), about["scratch_bytes"]
        # Behind the arguments Triton takes its memory for all blocks, and its profiler's.
        arguments = (*about["arguments"], "scratch" if scratch else "", "")
        step = Step(rendered.entry, grid, (about["threads"],), about["shared_bytes"], arguments)
        memory = Workspace(scratch * math.prod(grid), regions=(("scratch", 0),)) if scratch else None
        return replace(rendered, launch=Launch.of(rendered.entry, [step], memory)), cubin

    def module(self, rendered: Rendered, problem: Problem) -> str:
        """The source with its config, and a function that launches it as it was tuned."""
        return cast(str, load("tuner.triton.compiler:launching")(rendered, problem))

    def bind(self, rendered: Rendered, code: bytes, arrays: Arrays, device: DeviceInfo) -> Run:
        """Loads the cubin, or has the interpreter run the source."""
        return cast(Run, load("tuner.triton.compiler:bound")(rendered, code, arrays, device))


LANGUAGE = TritonLanguage()
