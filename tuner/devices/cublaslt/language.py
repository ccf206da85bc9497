"""Python that calls cuBLASLt, as a language of kernels: what runs is the library's own code."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from tuner.declare.epilogue import Epilogue
from tuner.declare.folders import kernels_folder
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel, Rendered
from tuner.declare.problem import Problem
from tuner.devices.cpu.language import NumbaLanguage
from tuner.devices.cuda.language import macros
from tuner.devices.protocol import Arrays, Binary, CompileFailed, Compiler, Run
from tuner.extras import load
from tuner.results.measurement import CompileReport


def element_wise_source(problem: Problem, rest: Epilogue) -> str:
    """CUDA source of a kernel that finishes a product in place, where the library has no such epilogue."""
    constants = problem.operation.constants(replace(problem, epilogue=rest.text), "cuda")
    folder = kernels_folder() / "gemm" / "cuda"
    names = ("epilogue.cuh",) if "SCALAR" in constants else ("half.cuh", "epilogue.cuh")
    files = [*(folder / name for name in names), Path(__file__).with_name("element_wise.cu")]
    return "\n".join([*macros(constants), *(file.read_text(encoding="utf-8") for file in files)])


class CublasLtLanguage(NumbaLanguage):
    """Kernels as ``.py`` files of ``ctypes``, and beside each a ``.cpp`` file for exports."""

    name, target, kind = "cuBLASLt", "cublaslt", "cuda"
    suffix = ".py"
    is_library = True
    array_library = "CuPy"
    loader = "tuner.devices.cublaslt.products:CalledProduct"
    compiler_packages = tuple(
        (name, "cuBLAS {1}{2:0>2}{3:0>2}") for name in ("nvidia-cublas", "nvidia-cublas-cu12")
    )

    def exported(self, kernel: Kernel, problem: Problem, config: Mapping[str, Any]) -> tuple[Rendered, str]:
        """Macros, then the C++ source."""
        constants = {**problem.operation.constants(problem, self.target), **config}
        files = (*kernel.source.includes, kernel.source.file)
        text = files[0].with_suffix(".cpp").read_text(encoding="utf-8")
        source = "\n".join([*macros(constants), "", text])
        return Rendered(source, kernel.source.entry, self.target), " -lcublasLt"

    def compiler(self) -> Compiler:
        """There is nothing to compile."""
        return _Reader()

    def bind(self, rendered: Rendered, code: bytes, arrays: Arrays, device: DeviceInfo) -> Run:
        """Has the library check the algorithm."""
        return cast(Run, load("tuner.devices.cublaslt.products:bound")(rendered, arrays))


class _Reader:
    """`tuner.devices.protocol.Compiler` that reads the source alone: it is Python."""

    def compile(self, rendered: Rendered, architecture: str, problem: Problem) -> Binary:
        """Names the config; the code is empty."""
        try:
            compile(rendered.text, "cublaslt", "exec")
        except SyntaxError as error:
            raise CompileFailed(f"SyntaxError: {error}") from error
        digest = hashlib.sha256(rendered.text.encode()).hexdigest()[:24]
        return Binary(b"", CompileReport(binary_hash=digest, compiler="cuBLASLt"))


LANGUAGE = CublasLtLanguage()
