"""Products of eager programs without Python: dispatch.cpp, compiled once for each version of PyTorch.

Python runs a product once, by `tuner.matmul`. What was queued meanwhile says what native code does from then
on: if nothing was, PyTorch's own product; else launches of that kernel, into which it writes addresses.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import shlex
import subprocess
import sysconfig
import tempfile
import threading
import weakref
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tuner.devices.cuda.native import NOTED, NativeRun, native_queue
from tuner.devices.settings import cache_root
from tuner.lookup.demand import DEMAND
from tuner.python.decisions import Decision, warn_once
from tuner.python.misses import EPOCH, TURNS

#: What holds in all blocks, as a number; 0 where they differ, or products are collected.
HELD = array("q", [0])
#: Seconds that a compiler may take, and characters that are told of what it says.
COMPILE_S, LONGEST = 300, 400
#: Handle of a stream that is another one in each thread: `cudaStreamPerThread`.
STREAM_OF_A_THREAD = 2
#: What runs while a graph is captured: the same, PyTorch's own product, or what Python says.
SAME, PYTORCHS, PYTHONS = range(3)
_FLAGS = ("-shared", "-fPIC", "-std=c++20", "-O2")
#: Counters that native code adds to: they stay where they are.
_COUNTED: list[array[int]] = []


@functools.cache
def library(device: str) -> ctypes.CDLL | None:
    """The native code, which replaces operators of PyTorch in threads inside of a block.

    Its `multiply` runs `tuner.matmul` of two tensors, `out` or None, and what holds; it returns None where
    Python is to do so. Without Python's headers it is false.

    Args:
        device: Type of the devices that kernels run on.

    Returns:
        None without a compiler for C++ (CXX, else ``c++``): then Python runs each product.
    """
    try:
        library: Any = ctypes.CDLL(str(_compiled()))
        capturing = ctypes.CDLL("libcuda.so.1").cuStreamIsCapturing if device == "cuda" else None
        queue: Any = native_queue()
    except (OSError, subprocess.SubprocessError, AttributeError) as error:
        said = str(getattr(error, "stderr", "") or error)[:LONGEST]
        warn_once(f"calls of PyTorch's products take longer, as their native part cannot be had: {said}")
        return None
    addresses = [counter.buffer_info()[0] for counter in (EPOCH, TURNS, HELD)]
    addresses += [ctypes.cast(of, ctypes.c_void_p).value or 0 for of in (queue, capturing) if of is not None]
    type_of_device = int(torch._C._autograd.DeviceType.__members__[device.upper()])
    library.tuner_begin((ctypes.c_uint64 * 5)(*addresses), type_of_device)
    made, one = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_void_p), torch.empty(0)
    library.multiply = hasattr(library, "tuner_multiply") and made(("tuner_multiply", library))(one, one._cdata)
    return library


def _compiled() -> Path:
    """Where the native code is; compiled in seconds unless it was before."""
    source, lib = Path(__file__).with_name("dispatch.cpp"), Path(torch.__file__).with_name("lib")
    compiler, include = shlex.split(os.environ.get("CXX") or "c++"), lib.with_name("include")
    python = sysconfig.get_path("include")
    named = source.read_text(encoding="utf-8"), torch.__version__, str(lib), python, *compiler, *_FLAGS
    path = cache_root() / "torch" / f"{hashlib.sha256(repr(named).encode()).hexdigest()[:16]}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            folders = [f"-I{each}" for each in (include, include / "torch/csrc/api/include", python)]
            libraries = f"-L{lib}", f"-Wl,-rpath,{lib}", "-ltorch_python", "-ltorch_cpu", "-lc10"
            command = [*compiler, *_FLAGS, str(source), "-o", str(made), *folders, *libraries]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_S)
            made.replace(path)
    return path


@contextlib.contextmanager
def noted() -> Iterator[list[tuple[Any, int, tuple[int, ...]]]]:
    """What this thread queues inside: runs, streams, and addresses of tensors."""
    queued: list[tuple[Any, int, tuple[int, ...]]] = []
    thread = threading.get_ident()

    def note(*queueing: Any) -> None:
        if threading.get_ident() == thread:
            queued.append(queueing)

    NOTED.append(note)
    try:
        yield queued
    finally:
        NOTED.remove(note)


def keep(
    native: ctypes.CDLL, held: tuple[int, int], tensors: Sequence[Tensor], result: Tensor,
    decision: Decision | None, queued: Sequence[tuple[Any, int, tuple[int, ...]]],
) -> None:  # fmt: skip
    """Has native code run the product that this thread was asked for, if it can.

    Args:
        native: Of `library`.
        held: Number of what held before, and the sum of counters.
        tensors: What was given, in order.
        result: What was returned.
        decision: What records say of it.
        queued: What was queued meanwhile.
    """
    starts = [tensor.data_ptr() for tensor in (*tensors, result)]
    run, stream, addresses = queued[0] if queued else (None, 0, ())
    apart = len({*starts}) == len(starts) and {*addresses} <= {*starts} and result.is_contiguous()
    if len(queued) > 1 or stream == STREAM_OF_A_THREAD or (run and not apart):
        return
    program = run.again() if run else None
    if program:
        weakref.finalize(run, _drop, native, program).atexit = False
    if decision is not None and decision.is_miss:
        _COUNTED.append(DEMAND.count(decision.problem, decision.device, decision.answer).hits)
    calls = _COUNTED[-1].buffer_info()[0] if decision is not None and decision.is_miss else 0
    only_eager = decision is not None and (decision.in_graphs is False or (run and decision.kernel is None))
    captured = PYTHONS if decision is not None and decision.in_graphs else PYTORCHS if only_eager else SAME
    words = [*held, run is not None, captured, calls, stream, program.program if program else 0, len(addresses)]
    words += [*map(starts.index, addresses), *result.shape]
    native.tuner_keep((ctypes.c_int64 * len(words))(*words), ctypes.c_int64(len(words)))


def _drop(native: ctypes.CDLL, run: NativeRun) -> None:
    native.tuner_drop(ctypes.c_uint64(run.program))
