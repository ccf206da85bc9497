"""Launches that may start while the one before them ends. No GPU: what the driver is given is read back."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy")

import cupy

from tuner.declare.launch import Launch, Packing, Step, Workspace
from tuner.devices.cuda import launching

GEOMETRY = (3, 2, 1), (64, 4, 1), 512


def words(address: int, size: int, kind: Any = ctypes.c_uint64) -> list[int]:
    return list((kind * size).from_address(address))


class Library:
    """Stands for libcuda: reads what it is given back from memory, by the layout of CUDA's headers."""

    def __init__(self, version: int = 13000, sizes: tuple[int, ...] = ()) -> None:
        self.version, self.sizes, self.status = version, sizes, 0
        self.given: list[dict[str, Any]] = []

    def cuDriverGetVersion(self, to: Any) -> int:  # noqa: N802  # the driver's name
        to._obj.value = self.version
        return 0

    @property
    def cuLaunchKernelEx(self) -> Any:  # noqa: N802  # likewise
        return Launcher(self)


class Launcher:
    def __init__(self, library: Library) -> None:
        self.library = library

    def __call__(self, config: Any, function: int, parameters: Any, extra: None) -> int:
        at = ctypes.addressof(config._obj)
        attribute, count = words(at + 40, 1)[0], words(at + 48, 1, ctypes.c_uint)[0]
        pointers = words(ctypes.addressof(parameters), len(self.library.sizes))
        self.library.given.append({
            "sizes": words(at, 7, ctypes.c_uint), "stream": words(at + 32, 1)[0], "count": count,
            "attribute": words(attribute, 1, ctypes.c_int)[0], "value": ctypes.string_at(attribute + 8, 64),
            "function": function, "extra": extra,
            "parameters": [ctypes.string_at(*each) for each in zip(pointers, self.library.sizes, strict=True)],
        })  # fmt: skip
        return self.library.status


class Function:
    """Stands for CuPy's; notes how it is called."""

    ptr = 77

    def __init__(self, noted: list[Any] | None = None) -> None:
        self.noted: list[Any] = [] if noted is None else noted

    def __call__(self, *given: Any) -> None:
        self.noted.append(given)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    played = Library()
    monkeypatch.setattr(launching, "_library", lambda: played)
    launching._launch.cache_clear()
    yield played
    launching._launch.cache_clear()


def stream(handle: int) -> Any:
    return SimpleNamespace(ptr=handle)


def array(address: int) -> Any:
    return SimpleNamespace(data=SimpleNamespace(ptr=address))


def test_the_driver_finds_geometry_stream_attribute_and_arguments(library: Library) -> None:
    map_ = np.arange(128, dtype=np.uint8).view("V128")
    arguments = (array(1 << 40), 1 << 41, np.int32(-5), np.float64(0.5), np.uint64(0), map_, np.float16(2))
    library.sizes = (8, 8, 4, 8, 8, 128, 2)
    function = Function()
    launching.early(function, *GEOMETRY)(arguments, stream(9))
    assert function.noted == []
    (given,) = library.given
    assert (given["sizes"], given["stream"]) == ([3, 2, 1, 64, 4, 1, 512], 9)
    assert (given["attribute"], given["count"], given["value"]) == (6, 1, bytes([1]).ljust(64, b"\0"))
    assert (given["function"], given["extra"]) == (77, None)
    assert given["parameters"] == [
        (1 << 40).to_bytes(8, "little"), (1 << 41).to_bytes(8, "little"), np.int32(-5).tobytes(),
        np.float64(0.5).tobytes(), bytes(8), bytes(range(128)), np.float16(2).tobytes(),
    ]  # fmt: skip


def test_layouts_are_those_of_cudas_headers() -> None:
    assert (ctypes.sizeof(launching.LaunchConfig), ctypes.sizeof(launching.Attribute)) == (56, 72)
    assert launching.Attribute.value.offset == 8


def test_each_call_has_its_own_stream_and_the_current_one_where_none_is_given(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: stream(4))
    launched = launching.early(Function(), *GEOMETRY)
    launched((), stream(0))
    launched(())
    launched((), stream(5))
    assert [each["stream"] for each in library.given] == [0, 4, 5]


def test_a_refusal_is_the_error_that_cupys_launches_raise(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(status: int) -> None:
        raise RuntimeError(f"refused with {status}")

    monkeypatch.setattr(launching, "driver", SimpleNamespace(check_status=refuse))
    library.status = 701
    with pytest.raises(RuntimeError, match="refused with 701"):
        launching.early(Function(), *GEOMETRY)((), stream(0))


def missing() -> Any:
    raise OSError("no libcuda.so.1")


@pytest.mark.parametrize(
    "found", [lambda: Library(12020), lambda: SimpleNamespace(cuDriverGetVersion=None), missing]
)
def test_a_driver_without_such_launches_has_ordinary_ones(
    found: Any, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "_library", found)
    function, on = Function(), stream(3)
    launched = launching.early(function, *GEOMETRY)
    launched((1, 2))
    launched((3,), on)
    assert function.noted == [(*GEOMETRY[:2], (1, 2), 512), (*GEOMETRY[:2], (3,), 512, on)]


def run_of(*early: bool) -> tuple[Launch, Any]:
    """A launch of as many steps, each of which is given x; and its problem."""
    names = ("first", "second", "third")
    steps = [Step(name, (1,), (32,), 0, ("x",), each) for name, each in zip(names, early, strict=False)]
    found = Launch.of("first", steps, Workspace(64, regions=(("packed", 0),)))
    return found, SimpleNamespace(tensors=[SimpleNamespace(name="x")], scalars=[])


def test_a_series_launches_by_the_driver_what_is_early_and_no_more(library: Library) -> None:
    noted: list[Any] = []
    launch, problem = run_of(False, True, False)
    series = launching.Series(SimpleNamespace(get_function=lambda entry: Function(noted)), launch, problem)
    library.sizes = (8,)
    series.queue([array(256), array(512), launching.NULL, launching.NULL], stream(2))
    assert len(noted) == 2
    assert [each["parameters"] for each in library.given] == [[(256).to_bytes(8, "little")]]


def test_what_is_launched_alone_follows_no_step_and_is_an_ordinary_launch(library: Library) -> None:
    noted: list[Any] = []
    launch, problem = run_of(False, True)
    packing = Packing("x", "packed", 64, "second")
    launch = replace(launch, packings=(packing,))
    module = SimpleNamespace(get_function=lambda entry: Function(noted))
    series = launching.Series(module, launch, problem, packing, alone=True)
    series.queue([array(256), array(512), launching.NULL, launching.NULL, array(1024)], stream(2))
    assert (len(noted), library.given) == (1, [])
