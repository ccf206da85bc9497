"""Tensor maps by the driver's function. No GPU: what it would be given is noted."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cupy")

from tuner.declare.catalogue import builtin
from tuner.declare.launch import Launch, Padded, Step, TensorMap
from tuner.declare.problem import Tensor
from tuner.devices.cuda import launching, tensor_maps
from tuner.devices.protocol import LaunchFailed
from tuner.errors import DeclarationError

MAP = TensorMap("map_a", "a", (128, 64), 128)
LAUNCH = Launch.of("gemm", (Step("gemm", (1,), (32,), 0, ("map_a", "c", "k", "")),), maps=(MAP,))
PROBLEM = builtin().operation("gemm").problem({"m": 200, "n": 64, "k": 72}, "bfloat16")


class Driver:
    """Notes the arguments of cuTensorMapEncodeTiled, and writes the address into the map."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.promotions: list[int] = []
        self.status = 0

    def __call__(self, made: int, kind: int, rank: int, address: int, *rest: Any) -> int:
        sizes, pitches, box, steps, interleave, swizzle, promotion, fill = rest
        self.calls.append({
            "kind": kind, "sizes": list(sizes), "pitches": list(pitches)[: rank - 1], "box": list(box),
            "steps": list(steps), "modes": (interleave, swizzle, fill), "aligned": made % 64 == 0,
        })  # fmt: skip
        self.promotions.append(promotion)
        ctypes.c_uint64.from_address(made).value = address
        return self.status


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    played = Driver()
    monkeypatch.setattr(tensor_maps, "_encode", lambda: played)
    tensor_maps.encoded.cache_clear()
    return played


def array(address: int) -> Any:
    return SimpleNamespace(data=SimpleNamespace(ptr=address))


def test_a_map_describes_the_tensor_from_its_contiguous_dim_on(driver: Driver) -> None:
    made = tensor_maps.encoded(MAP, PROBLEM.tensors[0], 1 << 20)
    assert driver.calls == [{
        "kind": 9, "sizes": [72, 200], "pitches": [144], "box": [64, 128], "steps": [1, 1], "modes": (0, 3, 0),
        "aligned": True,
    }]  # fmt: skip
    assert (made.size, made.itemsize) == (1, 128), "CuPy passes it by value"
    assert int.from_bytes(made.tobytes()[:8], "little") == 1 << 20


def test_a_vector_and_three_dims_have_their_pitches(driver: Driver) -> None:
    tensor_maps.encoded(TensorMap("v", "v", (64,)), Tensor("v", (100,), "float32"), 256)
    tensor_maps.encoded(TensorMap("x", "x", (2, 8, 8)), Tensor("x", (5, 6, 8), "float64"), 256)
    assert [call["pitches"] for call in driver.calls] == [[], [64, 384]]


@pytest.mark.parametrize(
    ("columns", "asked", "given"), [(64, 256, 3), (64, 128, 2), (72, 256, 2), (1000, 256, 2)]
)
def test_a_miss_brings_one_line_where_rows_begin_amid_lines(
    columns: int, asked: int, given: int, driver: Driver
) -> None:
    wanted = replace(MAP, promotion=asked)
    tensor_maps.encoded(wanted, Tensor("a", (200, columns), "bfloat16"), 1 << 20)
    assert driver.promotions == [given]


def test_maps_of_the_same_arrays_are_made_once(driver: Driver) -> None:
    arrays = [array(256), array(512), array(1024)]
    first = tensor_maps.maps_of(LAUNCH, PROBLEM, arrays)
    assert tensor_maps.maps_of(LAUNCH, PROBLEM, arrays)[0] is first[0]
    tensor_maps.maps_of(LAUNCH, PROBLEM, [array(4096), *arrays[1:]])
    assert len(driver.calls) == 2


def test_the_map_of_a_padded_tensor_has_its_larger_shape(driver: Driver) -> None:
    padded = replace(LAUNCH, padded=(Padded("a", (200, 80)),))
    tensor_maps.maps_of(padded, PROBLEM, [array(256), array(512), array(1024)])
    assert (driver.calls[0]["sizes"], driver.calls[0]["pitches"]) == ([80, 200], [160])


@pytest.mark.parametrize(("shape", "address"), [((200, 72), 8), ((200, 71), 256)])
def test_what_begins_amid_16_bytes_is_refused(shape: tuple[int, int], address: int) -> None:
    with pytest.raises(LaunchFailed, match="begin at multiples of 16 bytes"):
        tensor_maps.encoded(MAP, Tensor("a", shape, "bfloat16"), address)


def test_a_refusal_of_the_driver_is_told(driver: Driver) -> None:
    driver.status = 1
    with pytest.raises(LaunchFailed, match="status 1"):
        tensor_maps.encoded(MAP, PROBLEM.tensors[0], 1 << 20)


def test_a_run_is_given_its_maps_by_name(driver: Driver) -> None:
    given: list[Any] = []
    series = launching.Series(SimpleNamespace(get_function=lambda entry: Called(given)), LAUNCH, PROBLEM)
    maps = tensor_maps.maps_of(LAUNCH, PROBLEM, [array(256), array(512), array(1024)])
    series.queue(["a", "b", "c", "m", "n", "k", *launching.regions_of(None, LAUNCH), *maps])
    assert given[0][0] is maps[0]
    assert given[0][1:3] == ("c", "k")
    assert int(given[0][3]) == 0


class Called:
    """A function of a module that notes its arguments."""

    def __init__(self, given: list[Any]) -> None:
        self.given = given

    def __call__(self, grid: Any, block: Any, arguments: Any, shared: int) -> None:
        self.given.append(arguments)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: TensorMap("x", "a", (64, 64), 48), "swizzle of tensor map 'x' is one of 0, 32, 64, 128 bytes"),
        (lambda: replace(MAP, promotion=64), "promotion of tensor map 'map_a' is 128 or 256 bytes, got 64"),
        (lambda: TensorMap("x", "a", (64, 300)), "1 to 256 elements along each"),
        (lambda: Launch((1,), (32,), maps=(MAP,)), "tensor maps are arguments of steps"),
    ],
)
def test_wrong_declarations_are_refused(wrong: Any, said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        wrong()
