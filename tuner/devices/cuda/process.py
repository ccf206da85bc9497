"""Computes on a GPU in a process of its own, which leaves neither memory nor a context there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from multiprocessing import get_context
from typing import Any, TypeVar

from tuner.devices.detect import DetectedDevice, find
from tuner.devices.device_lock import device_lock

#: Environment variables that make a GPU the only one that a process sees.
Gpu = Mapping[str, str]

T = TypeVar("T")


def gpu_of(device: DetectedDevice) -> Gpu | None:
    """What makes a device the one that such a process sees; None unless it is a GPU."""
    return dict(device.environment) if device.opening == "cuda" else None


@contextmanager
def held_gpu(words: str, what: str) -> Iterator[Gpu | None]:
    """Holds a GPU of this machine for what is done meanwhile; None if the words are no ``cuda:N``.

    Raises:
        DeviceTrouble: There is no such GPU here.
        LockedByAnother: Another process works with it.
    """
    device = find(words) if words.startswith("cuda") else None
    with device_lock(device.info, what) if device else nullcontext():
        yield gpu_of(device) if device else None


def on_gpu(gpu: Gpu, function: Callable[..., T], *arguments: Any) -> T:
    """Calls a function with some arguments and, last, CuPy in place of NumPy.

    Args:
        gpu: Where.
        function: A module's own, which the process imports.
        arguments: Can be pickled, as what it returns can.

    Raises:
        Exception: What the function raised, or what came of the process or the GPU.
    """
    with ProcessPoolExecutor(1, get_context("spawn"), _see, (dict(gpu),)) as process:
        return process.submit(_with_cupy, function, arguments).result()


def _see(gpu: Gpu) -> None:
    os.environ.update(gpu)


def _with_cupy(function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    import cupy

    return function(*arguments, cupy)
