"""Compiles CUDA C++ to cubins with NVRTC. It needs neither a GPU nor a driver."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import re
import sqlite3
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tuner.declare.kernel import Rendered
from tuner.declare.problem import Problem
from tuner.devices.protocol import Binary, CompileFailed, language_of
from tuner.devices.settings import cache_root, cache_trouble
from tuner.errors import DeviceTrouble
from tuner.results.measurement import CompileReport

#: Largest total size in bytes, enough for some twenty thousand cubins.
LIMIT_BYTES = 1 << 30


#: Options of every compilation. ``-v`` makes ptxas report registers and spills in the program log.
OPTIONS = ("--std=c++17", "--ptxas-options=-v", "--pre-include=nvcc.cuh")
#: What nvcc has and NVRTC lacks, and headers of which device code uses no more than that.
NVCC = Path(__file__).with_name("nvcc.cuh")
HEADERS = (
    NVCC.name, "algorithm", "assert.h", "cassert", "cfloat", "climits", "cmath", "cstddef", "cstdint", "cstdio",
    "cstdlib", "cuda.h", "cuda_runtime.h", "device_launch_parameters.h", "float.h", "limits.h", "math.h",
    "math_constants.h", "stddef.h", "stdint.h", "stdio.h", "stdlib.h",
)  # fmt: skip


#: What is said where a header is missing.
MISSING = (
    "(device code is compiled without the host's headers; those of the CUDA toolkit are read from the include "
    "folder of CUDA_PATH, or from the package nvidia-cuda-runtime)"
)


@functools.cache
def toolkit_headers() -> tuple[str, ...]:
    """Options for headers of the CUDA toolkit: of ``CUDA_PATH``, NVIDIA's packages, or ``/usr/local/cuda``."""
    packages = importlib.util.find_spec("nvidia")
    roots = [Path(folder) for folder in (packages and packages.submodule_search_locations) or ()]
    packaged = [path for root in roots for path in sorted(root.glob("*/include"))]
    chosen = [Path(os.environ["CUDA_PATH"], "include")] if "CUDA_PATH" in os.environ else []
    folders = (*chosen, *packaged, Path("/usr/local/cuda/include"))
    whole = next((path for path in folders if (path / "cuda_fp16.h").is_file()), None)
    return () if whole is None else (f"--include-path={whole}", f"--include-path={whole / 'cccl'}")


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
    headers = (NVCC.read_bytes(),) * len(HEADERS)
    program = nvrtc.createProgram(text, "kernel.cu", headers, tuple(name.encode() for name in HEADERS))
    more = (*toolkit_headers(), *options) if "#include" in text else options
    try:
        try:
            nvrtc.compileProgram(program, (*OPTIONS, f"--gpu-architecture={architecture}", *more))
        except nvrtc.NVRTCError as error:
            log = nvrtc.getProgramLog(program).strip()
            missing = f" {MISSING}" if "open source file" in log else ""
            raise CompileFailed((log or str(error)) + missing) from None
        # CuPy cuts off the last byte as a terminating zero, but that byte is part of the cubin.
        return nvrtc.getCUBIN(program) + b"\0", nvrtc.getProgramLog(program)
    finally:
        nvrtc.destroyProgram(program)


def nvrtc_version() -> str:
    """Returns the version of NVRTC, e.g. ``NVRTC 13.0``."""
    from cupy_backends.cuda.libs import nvrtc

    return "NVRTC {}.{}".format(*nvrtc.getVersion())


def read_report(log: str, cubin: bytes, entry: str = "") -> CompileReport:
    """Registers, spills and memory from ptxas's log.

    Args:
        log: What ptxas said.
        cubin: The machine code.
        entry: Of this kernel; of the one that uses most of each if it is empty or not named in the log.
    """
    parts = re.split(r"(?=Compiling entry function ')", log)
    log = next((part for part in parts if part.startswith(f"Compiling entry function '{entry}'")), log)

    def largest(pattern: str) -> int:
        return max((int(number) for number in re.findall(pattern, log)), default=0)

    return CompileReport(
        registers=largest(r"Used (\d+) registers"), spill_bytes=largest(r"(\d+) bytes spill stores"),
        shared_bytes=largest(r"(\d+) bytes smem"), local_bytes=largest(r"(\d+) bytes stack frame"),
        binary_hash=hashlib.sha256(cubin).hexdigest()[:24], compiler=nvrtc_version(),
    )  # fmt: skip


def target_architecture(compute_capability: int) -> str:
    """Returns the architecture to compile for; with suffix ``a`` if the chip has instructions of its own."""
    return f"sm_{compute_capability}{'a' if compute_capability >= 90 else ''}"


class NvrtcCompiler:
    """`tuner.devices.protocol.Compiler` for CUDA kernels, with a cache on disk."""

    def __init__(self) -> None:
        """Opens the cache, or makes it if it does not exist.

        Raises:
            EnvironmentTrouble: Its folder cannot be written.
        """
        import diskcache

        try:
            self._cache: Any = diskcache.Cache(
                str(cache_root() / "cubins"), size_limit=LIMIT_BYTES, eviction_policy="least-recently-used"
            )
        except (OSError, sqlite3.Error) as error:
            raise cache_trouble(error) from error

    def get(self, rendered: Rendered, architecture: str, compiler: str) -> Binary | None:
        """Returns the binary stored for the same source, options, architecture and compiler, or None."""
        value = self._cache.get(_key(rendered, architecture, compiler))
        if not isinstance(value, bytes):
            return None
        report, _, code = value.partition(b"\n")
        return Binary(code, CompileReport(**json.loads(report)))

    def put(self, rendered: Rendered, architecture: str, binary: Binary) -> None:
        """Stores a binary. If the disk is full, it is compiled again next time."""
        # The cache stores bytes unchanged; it would pickle anything else.
        value = json.dumps(asdict(binary.report)).encode() + b"\n" + binary.code
        with contextlib.suppress(OSError, sqlite3.Error):
            self._cache.set(_key(rendered, architecture, binary.report.compiler), value)

    def compile(self, rendered: Rendered, architecture: str, problem: Problem | None = None) -> Binary:
        """Compiles to a cubin for the architecture, or finds it in the cache; see the protocol."""
        binary = self.get(rendered, architecture, nvrtc_version())
        if binary is None:
            cubin, log = compile_cubin(rendered.text, architecture, rendered.options)
            binary = Binary(cubin, read_report(log, cubin, rendered.entry))
            self.put(rendered, architecture, binary)
        return binary

    def close(self) -> None:
        """Closes the cache's files."""
        self._cache.close()


def _key(rendered: Rendered, architecture: str, compiler: str) -> str:
    return hashlib.sha256("\0".join((rendered.hash, architecture, compiler)).encode()).hexdigest()


def compiled_code(rendered: Rendered, architecture: str, problem: Problem | None = None) -> bytes:
    """The code of a kernel by its language's compiler, from the cache if it is there.

    Raises:
        CompileFailed: The source does not compile.
    """
    compiler: Any = language_of(rendered.target).compiler()
    with contextlib.closing(compiler):
        return bytes(compiler.compile(rendered, architecture, problem).code)
