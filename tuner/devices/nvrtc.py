"""Compiles CUDA C++ to cubins with NVRTC. It needs neither a GPU nor a driver."""

from __future__ import annotations

import hashlib
import re

from tuner.declare.kernel import Rendered
from tuner.declare.problem import Problem
from tuner.devices.cubin_cache import CubinCache
from tuner.devices.protocol import Binary, CompileFailed
from tuner.errors import DeviceTrouble
from tuner.results.measurement import CompileReport

#: Options of every compilation. ``-v`` makes ptxas report registers and spills in the program log.
OPTIONS = ("--std=c++17", "--ptxas-options=-v")


def compile_cubin(text: str, architecture: str, options: tuple[str, ...] = ()) -> tuple[bytes, str]:
    """Compiles CUDA C++.

    Args:
        text: The source.
        architecture: ``sm_90a``...
        options: More NVRTC options.

    Returns:
        The cubin and the compiler's log.

    Raises:
        CompileFailed: The source does not compile; the message is the compiler's log.
        DeviceTrouble: CuPy or NVRTC is not installed.
    """
    try:
        from cupy_backends.cuda.libs import nvrtc
    except ImportError as error:
        raise DeviceTrouble(
            f"compiling for CUDA needs CuPy, which cannot be imported ({error}); install the extra cuda13 "
            "or cuda12, for your driver's CUDA version"
        ) from error
    program = nvrtc.createProgram(text, "kernel.cu", (), ())
    try:
        try:
            nvrtc.compileProgram(program, (*OPTIONS, f"--gpu-architecture={architecture}", *options))
        except nvrtc.NVRTCError as error:
            log = nvrtc.getProgramLog(program).strip()
            raise CompileFailed(log or str(error)) from None
        # CuPy cuts off the last byte as a terminating zero, but that byte is part of the cubin.
        return nvrtc.getCUBIN(program) + b"\0", nvrtc.getProgramLog(program)
    finally:
        nvrtc.destroyProgram(program)


def nvrtc_version() -> str:
    """Returns the version of NVRTC, e.g. ``NVRTC 13.0``."""
    from cupy_backends.cuda.libs import nvrtc

    return "NVRTC {}.{}".format(*nvrtc.getVersion())


def read_report(log: str, cubin: bytes) -> CompileReport:
    """Reads registers, spills and memory from ptxas's log; the largest of each among the kernels."""

    def largest(pattern: str) -> int:
        return max((int(number) for number in re.findall(pattern, log)), default=0)

    return CompileReport(
        registers=largest(r"Used (\d+) registers"),
        spill_bytes=largest(r"(\d+) bytes spill stores"),
        shared_bytes=largest(r"(\d+) bytes smem"),
        local_bytes=largest(r"(\d+) bytes stack frame"),
        binary_hash=hashlib.sha256(cubin).hexdigest()[:24],
        compiler=nvrtc_version(),
    )


def target_architecture(compute_capability: int) -> str:
    """Returns the architecture to compile for; with suffix ``a`` if the chip has instructions of its own."""
    return f"sm_{compute_capability}{'a' if compute_capability >= 90 else ''}"


class NvrtcCompiler:
    """`tuner.devices.protocol.Compiler` for CUDA kernels, with a cache on disk."""

    def __init__(self) -> None:
        self._cache = CubinCache()

    def compile(self, rendered: Rendered, architecture: str, problem: Problem) -> Binary:
        """Compiles to a cubin for the architecture, or finds it in the cache; see the protocol."""
        compiler = nvrtc_version()
        known = self._cache.get(rendered, architecture, compiler)
        if known is not None:
            return known
        cubin, log = compile_cubin(rendered.text, architecture, rendered.options)
        binary = Binary(cubin, read_report(log, cubin))
        self._cache.put(rendered, architecture, compiler, binary)
        return binary

    def close(self) -> None:
        """Closes the cache's files."""
        self._cache.close()
