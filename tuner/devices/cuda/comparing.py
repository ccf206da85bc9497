"""Compares arrays on a GPU: one kernel each, which reads every element once and needs no memory beside them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import cupy
import numpy

from tuner.devices.cuda.launching import helper

THREADS, MOST_BLOCKS = 256, 1024
#: Elements of a thread before another block is worth its start.
PER_THREAD = 4
#: Type of an output that is compared as it is, by dtype; others become float64 first.
REALS = {"float32": "float", "float64": "double"}


@cache
def source(real: str = "float") -> str:
    """All kernels, the first for outputs of this type."""
    return f"#define REAL {real}\n{Path(__file__).with_suffix('.cu').read_text(encoding='utf-8')}"


def differences(output: Any, values: Any, tolerance: float, scale: float) -> Any:
    """Rows of what `tuner.devices.comparing.differences` joins, on the host."""
    if str(output.dtype) not in REALS:
        output = output.astype(cupy.float64)
    blocks = _blocks(values.size)
    rows = cupy.empty((blocks, 4), dtype=cupy.float64)
    arguments = (output, values, numpy.int64(values.size), float(tolerance), float(scale), rows)
    helper(source(REALS[str(output.dtype)]), "differences")((blocks, 1, 1), (THREADS, 1, 1), arguments, 0)
    return rows.get()


def unequal(pairs: Sequence[tuple[Any, Any]]) -> list[bool]:
    """See `tuner.devices.comparing.unequal`; the device is waited for once."""
    return [bool(flag) for flag in _of_each("unequal", pairs, cupy.int32)]


def checksums(arrays: Sequence[Any]) -> list[int]:
    """See `tuner.devices.comparing.checksums`; the device is waited for once."""
    return [int(total) for total in _of_each("sum_of_words", [(array,) for array in arrays], cupy.uint64)]


def fingerprint(cells: Any, infinity: int) -> int:
    """See `tuner.devices.comparing.fingerprint`; the device is waited for once."""
    total = cupy.zeros(1, dtype=cupy.uint64)
    arguments = (cells, numpy.int64(cells.size), numpy.int32(cells.itemsize), numpy.uint64(infinity), total)
    helper(source(), "fingerprint")((_blocks(cells.size), 1, 1), (THREADS, 1, 1), arguments, 0)
    return int(total.get()[0])


def _of_each(entry: str, stretches: Sequence[tuple[Any, ...]], dtype: Any) -> Any:
    """What a kernel makes of each group of stretches of the same size, on the host."""
    results = cupy.zeros(len(stretches), dtype=dtype)
    kernel = helper(source(), entry)
    for number, arrays in enumerate(stretches):
        size = arrays[0].nbytes
        arguments = (*arrays, numpy.int64(size), results[number:])
        kernel((_blocks(size // 16), 1, 1), (THREADS, 1, 1), arguments, 0)
    return results.get()


def _blocks(count: int) -> int:
    return max(1, min(MOST_BLOCKS, -(-count // (THREADS * PER_THREAD))))
