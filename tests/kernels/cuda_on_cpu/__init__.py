"""Runs CUDA kernels' own sources on the CPU, for tests on machines without a GPU.

A rendered source is compiled as host C++ behind ``cuda_on_cpu.h`` and linked with the runtime beside it, which
runs the threads of a block as fibres and finds accesses out of bounds, misaligned accesses, reads of unset
shared memory, races (also those of a missing barrier) and barriers that not all reach. Only g++ is needed.
"""

import hashlib
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cuda_on_cpu.translate import as_host_cpp
from tuner.declare.kernel import Rendered
from tuner.declare.launch import Launch
from tuner.declare.problem import Problem

HERE = Path(__file__).resolve().parent
#: The compiler puts calls before each access, and checks indices and alignment against declared types; the
#: runtime has the functions that these calls name, in place of the sanitizers' libraries.
WATCHED = ("-fsanitize=thread", "-fsanitize=bounds,alignment", "-fno-sanitize-recover=bounds,alignment")
#: Like nvcc, fuse a product and a sum; warnings about CUDA's pragmas and builtins say nothing about a kernel.
LANGUAGE = ("-std=c++17", "-march=native", "-ffp-contract=fast", "-w", f"-I{HERE}")
#: Linking takes half the time without the many symbols of shared libraries.
LIBRARIES = ("-static-libstdc++", "-static-libgcc")
TIMEOUT_S = 120


class Fault(Exception):
    """What the runtime found wrong.

    Attributes:
        kind: BOUNDS, RACE, UNSET, ALIGNMENT, BARRIER or WORKSPACE; INDEX for an index outside of an array's
            declared size; CRASH for anything else that ended the run.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


@dataclass(frozen=True)
class Program:
    """A CUDA kernel compiled for the CPU."""

    path: Path

    def run(
        self, problem: Problem, launch: Launch, arrays: Mapping[str, Any], order: str = "forward"
    ) -> dict[str, Any]:
        """Runs one launch on outputs full of NaN.

        Args:
            problem: Gives tensors and scalars in argument order.
            launch: Grid, block and dynamic shared memory.
            arrays: Inputs by name.
            order: How threads take turns between barriers: ``forward``, ``backward`` or ``random``.

        Returns:
            Outputs by name.

        Raises:
            Fault: The kernel did what it must not.
        """
        larger = {each.tensor: each.shape for each in launch.padded}
        arguments = []
        for tensor in problem.tensors:
            shape = larger.get(tensor.name, tensor.shape)
            if tensor.output:
                size = int(np.prod(shape)) * np.dtype(tensor.dtype).itemsize
                arguments.append(("output", b"\xff" * size))  # NaN in every floating-point format
            else:
                extra = [(0, large - own) for large, own in zip(shape, tensor.shape, strict=True)]
                arguments.append(("input", np.pad(arrays[tensor.name], extra).tobytes()))
        arguments += [("scalar", np.array(each.value, each.dtype).tobytes()) for each in problem.scalars]
        pieces = -1
        if launch.pieces is not None:
            pieces = [each.name for each in problem.tensors].index(launch.pieces.tensor)
            arguments.append(("scalar", bytes(4)))
        if launch.workspace is not None:
            own = launch.workspace
            arguments.append(("workspace", bytes(own.zeroed_bytes).ljust(own.bytes, b"\xff")))
        result = subprocess.run(
            [self.path], input=_job(launch, order, arguments, pieces), capture_output=True,
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        if result.returncode:
            raise _fault(result.returncode, result.stderr.decode(errors="replace").strip())
        outputs, own = _outputs(problem, larger, result.stdout)
        if launch.workspace is not None and any(own[: launch.workspace.zeroed_bytes]):
            raise Fault("WORKSPACE", "the kernel did not leave the first bytes of its memory as zeros")
        return outputs


def _fault(exit_code: int, message: str) -> Fault:
    if exit_code == 3:
        return Fault(*message.split(": ", 1))
    return Fault("CRASH", f"exit code {exit_code} {message}")


def _job(launch: Launch, order: str, arguments: list[tuple[str, bytes]], pieces: int) -> bytes:
    sizes = [*launch.grid, 1, 1][:3] + [*launch.block, 1, 1][:3]
    head = " ".join(map(str, [*sizes, launch.shared_bytes, order, 1, len(arguments), pieces]))
    lines = [f"{kind} {len(value)}" for kind, value in arguments]
    return ("\n".join([head, *lines]) + "\n").encode() + b"".join(value for _, value in arguments)


def _outputs(
    problem: Problem, larger: Mapping[str, tuple[int, ...]], data: bytes
) -> tuple[dict[str, Any], bytes]:
    """Outputs by name, and what the workspace holds."""
    outputs, at = {}, 0
    for tensor in problem.outputs:
        shape = larger.get(tensor.name, tensor.shape)
        size = int(np.prod(shape)) * np.dtype(tensor.dtype).itemsize
        whole = np.frombuffer(data[at : at + size], tensor.dtype).reshape(shape)
        outputs[tensor.name] = whole[tuple(slice(own) for own in tensor.shape)]
        at += size
    return outputs, data[at:]


def compile_runtime(folder: Path) -> Path:
    """Compiles the part that all programs share; returns the object file."""
    target = folder / "runtime.o"
    if not target.exists():
        # A fortified longjmp takes a jump to another fibre's stack for a mistake.
        options = ("-std=c++17", "-O2", "-U_FORTIFY_SOURCE")
        _compile(target, *options, "-r", *map(str, sorted(HERE.glob("*.cpp"))))
    return target


def compile_header(folder: Path) -> None:
    """Compiles the header beside the sources, where g++ finds it: parsing it takes longer than most kernels."""
    target = folder / "cuda_on_cpu.h.gch"
    if not target.exists():
        _compile(target, *LANGUAGE, *WATCHED, "-O1", "-x", "c++-header", str(HERE / "cuda_on_cpu.h"))


def compile_for_cpu(rendered: Rendered, folder: Path) -> Program:
    """Compiles a rendered CUDA kernel as host C++ into a program of the folder (once per text)."""
    compile_header(folder)
    pieces = rendered.launch.pieces if rendered.launch else None
    constant = (
        f"(unsigned char*){pieces.symbol}, sizeof {pieces.symbol}, sizeof *{pieces.symbol}" if pieces else ""
    )
    text = (
        f'#include "cuda_on_cpu.h"\n#line 1 "kernel.cu"\n{as_host_cpp(rendered.text)}\n'
        f"void call_kernel(void** arguments) {{ cuda_on_cpu::call({rendered.entry}, arguments); }}\n"
        f"cuda_on_cpu::ConstantArray constant_array() {{ return {{{constant}}}; }}\n"
    )
    path = folder / hashlib.sha256(text.encode()).hexdigest()[:16]
    if not path.exists():
        source = path.with_name(f"{path.name}-{os.getpid()}.cpp")
        source.write_text(text)
        watched_object = source.with_suffix(".o")
        _compile(watched_object, *LANGUAGE, *WATCHED, "-O1", "-c", str(source))
        _compile(path, *LIBRARIES, str(watched_object), str(compile_runtime(folder)))
    return Program(path)


def _compile(target: Path, *arguments: str) -> None:
    """Compiles beside the target, then renames: other processes see it when it is complete."""
    beside = target.with_name(f"{os.getpid()}-{target.name}")
    command = ["g++", *arguments, "-o", str(beside)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{' '.join(command)}\n{result.stderr[:4000]}"
    beside.replace(target)
