"""What a CUDA kernel is launched with, in a worker and for callers. No GPU: CuPy and the driver are played."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy")

from fixtures.fake_gpu import H200

from tuner.declare.catalogue import builtin
from tuner.declare.kernel import Rendered
from tuner.declare.launch import Launch, Packing, Padded, Pieces, Step, TensorMap, Workspace
from tuner.declare.problem import Tensor
from tuner.devices.cuda import calling, launching, tensor_maps
from tuner.devices.cuda import device as cuda
from tuner.devices.protocol import LaunchFailed
from tuner.errors import DeclarationError

GEMM = builtin().operation("gemm")
PROBLEM = GEMM.problem({"m": 6, "n": 5, "k": 4})
PLAIN = Launch((7, 2), (32,), 1024)
GEOMETRY = Step("gemm", (3, 2), (64, 4), 512)
A, B, C = 100, 200, 300


class Memory:
    """An array of CuPy's as far as its address goes."""

    made = 0

    def __init__(self, shape: Any, dtype: Any = "uint8") -> None:
        Memory.made += 1
        self.shape, self.itemsize = shape, np.dtype(dtype).itemsize
        self.nbytes = int(np.prod(shape)) * self.itemsize
        self.data = SimpleNamespace(ptr=Memory.made << 20)

    def view(self, dtype: Any) -> Memory:
        return self

    def fill(self, value: int) -> None:
        """Nothing reads it."""


class Board:
    """Notes what is launched: entry, grid, block, arguments, shared bytes, stream."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, ...]] = []
        self.modules = 0

    def module(self, code: bytes = b"") -> Any:
        """Stands for CuPy's."""
        self.modules += 1
        number = self.modules
        return SimpleNamespace(
            get_function=lambda entry: Function(entry, self.launched),
            get_global_var=lambda name: 7000 + number,
        )


class Function:
    """Stands for CuPy's."""

    ptr = 77

    def __init__(self, entry: str, launched: list[tuple[Any, ...]]) -> None:
        self.entry, self.launched = entry, launched

    def __call__(self, grid: Any, block: Any, given: Any, shared: int, stream: Any = None) -> None:
        self.launched.append((self.entry, grid, block, given, shared, stream and stream.ptr))


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    made = Board()
    copied = lambda *given: made.launched.append(("constant", *given[:3], given[4]))
    runtime = SimpleNamespace(
        getDevice=lambda: 0, streamPerThread=2, memcpyDeviceToDevice=3, memcpyAsync=copied
    )
    for module in (calling, launching):
        monkeypatch.setattr(module, "runtime", runtime)
        monkeypatch.setattr(module, "load_module", made.module)
    monkeypatch.setattr(calling, "compiled_code", lambda rendered, architecture: b"cubin")
    monkeypatch.setattr(calling, "_KEPT", calling._Kept())
    monkeypatch.setattr(calling, "_FUNCTIONS", {})
    monkeypatch.setattr(launching, "_COUNTERS", {})
    monkeypatch.setattr(launching, "workspace", lambda wanted: Memory(wanted.bytes))
    monkeypatch.setattr(launching.cupy, "zeros", Memory)
    monkeypatch.setattr(launching, "helper", lambda source, entry: Function(entry, made.launched))
    monkeypatch.setattr(calling.cupy.cuda, "Device", lambda index: contextlib.nullcontext())
    streams = SimpleNamespace(from_external=lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(calling.cupy.cuda, "Stream", streams)
    return made


def loaded(launch: Launch, device: Any = H200) -> calling.Loaded:
    return calling.Loaded(Rendered("", "gemm", "cuda", launch), PROBLEM, device, 0)


def arrays() -> list[Any]:
    return [SimpleNamespace(data=SimpleNamespace(ptr=address)) for address in (A, B, C)]


def test_a_launch_takes_addresses_and_then_the_scalars_typed(board: Board) -> None:
    loaded(PLAIN).run_at(11, A, B, C)
    ((_, grid, block, given, shared, stream),) = board.launched
    assert (grid, block, shared, stream) == ((7, 2, 1), (32, 1, 1), 1024, 11)
    assert given == (A, B, C, 6, 5, 4)
    assert [type(each) for each in given[3:]] == [np.int32] * 3
    other = loaded(PLAIN).with_scalars([np.int32(8), np.int32(9), np.int32(7)])
    other.run_at(11, A, B, C)
    assert board.launched[1][3] == (A, B, C, 8, 9, 7)


def test_the_shortest_run_is_the_same_launch_of_the_arrays(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded(PLAIN).shortest_run("a", "b", "c")
    assert board.launched == [("gemm", (7, 2, 1), (32, 1, 1), ("a", "b", "c", 6, 5, 4), 1024, None)]
    monkeypatch.setattr(calling.cupy.cuda, "get_current_stream", lambda: SimpleNamespace(ptr=9))
    loaded(Launch((1,), (32,), workspace=Workspace(4096))).shortest_run(*arrays())
    assert board.launched[1][3][:3] == (A, B, C)
    assert board.launched[1][5] == 9


def test_shapes_share_what_is_loaded_unless_they_need_other_shared_memory(board: Board) -> None:
    for launch in (PLAIN, Launch((9, 9), (32,), 1024), Launch((7, 2), (32,), 2048)):
        loaded(launch)
    assert board.modules == 2


@pytest.mark.parametrize(
    ("kept_bytes", "memory_bytes", "kept"),
    [(1 << 30, 0, True), (10_000, 0, False), (10_000, 20_000 * calling.KEPT_PART, True)],
    ids=["as usual", "too much is dropped", "a large GPU keeps more"],
)
def test_a_stream_keeps_its_workspace_within_a_bound(
    board: Board, monkeypatch: pytest.MonkeyPatch, kept_bytes: int, memory_bytes: int, kept: bool
) -> None:
    monkeypatch.setattr(calling, "KEPT_BYTES", kept_bytes)
    launch = Launch((1,), (32,), workspace=Workspace(4096))
    kernel = loaded(launch, replace(H200, memory_bytes=memory_bytes))
    for stream in (1, 1, 3, 4, 1):
        kernel.run_at(stream, A, B, C)
    first, again, other, _, last = (given[-1] for _, _, _, given, _, _ in board.launched)
    assert first == again != other, "no two streams share one"
    assert (last == first) == kept
    del kernel
    assert calling._KEPT._values == {}


def test_steps_are_given_what_they_name_on_every_stream(board: Board) -> None:
    steps = (
        Step("first", (7,), (32,), 0, ("a", "packed", "k")),
        Step("second", (9,), (64,), 512, ("packed", "c", "")),
    )
    kernel = loaded(Launch.of("second", steps, Workspace(1024, 256, (("packed", 256),))))
    for stream in (1, 1, 3):
        kernel.run_at(stream, A, B, C)
    assert [each[0] for each in board.launched] == ["first", "second"] * 3
    first, second = board.launched[:2]
    assert (first[1:3], second[1:3], second[4]) == (((7, 1, 1), (32, 1, 1)), ((9, 1, 1), (64, 1, 1)), 512)
    packed = [each[3][1] for each in board.launched[::2]]
    assert (first[3], second[3]) == ((A, packed[0], 4), (packed[0], C, 0))
    assert packed[0] % 1024 == 256
    assert packed[0] == packed[1] != packed[2]


def test_an_operand_is_packed_once_and_taken_from_there(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling.cupy, "empty", Memory)
    steps = (
        Step("pack", (1,), (32,), 0, ("a", "b", "packed_a", "packed_b", "count")),
        Step("gemm", (1,), (32,), 0, ("packed_a", "packed_b", "c")),
    )
    packings = tuple(Packing(name, f"packed_{name}", 512, "pack") for name in "ab")
    regions = (("packed_a", 0), ("packed_b", 512))
    launch = Launch.of("gemm", steps, Workspace(1024, 0, regions), packings=packings, counter="count")
    kernel = loaded(launch)
    memory = kernel.pack(packings[1], B, 5)
    assert board.launched == [("pack", (1, 1, 1), (32, 1, 1), (0, B, 0, memory.data.ptr, 0), 0, 5)]
    kernel.use_packed(packings[1], memory)
    kernel.run_at(5, A, B, C)
    (_, pack, gemm) = (each[3] for each in board.launched)
    assert (pack[0], pack[1], pack[3]) == (A, 0, memory.data.ptr)
    assert gemm[1:] == (memory.data.ptr, C)
    assert gemm[0] == pack[2] != 0


def test_a_padded_tensor_is_copied_in_or_out(board: Board) -> None:
    loaded(Launch((1,), (32,), padded=(Padded("a", (6, 4)),))).run_at(1, A, B, C)
    assert board.launched[0][3] == (A, B, C, 6, 5, 4), "padding that changes no shape is none"
    board.launched.clear()
    loaded(Launch((1,), (32,), padded=(Padded("a", (8, 32)), Padded("c", (8, 8))))).run_at(1, A, B, C)
    copy_in, run, copy_out = (each[3] for each in board.launched)
    larger_a, larger_c = run[0], run[2]
    assert run[1] == B
    assert copy_in == (larger_a, 32, A, 4, 6, 4)
    assert copy_out == (C, 5, larger_c, 8, 6, 5)


def test_pieces_pass_through_the_constant_memory_of_a_module_for_each_stream(board: Board) -> None:
    kernel = loaded(Launch((1,), (32,), pieces=Pieces("piece", "b", 12)))
    for stream in (1, 3):
        kernel.run_at(stream, A, B, C)
    first, _, second, launch, *others = board.launched
    symbol = first[1]
    assert first == ("constant", symbol, B, 48, 1)
    assert second == ("constant", symbol, B + 48, 32, 1)
    assert launch[3] == (A, B, C, 6, 5, 4, 12)
    assert others[0][1] != symbol
    assert others[0][4] == 3


def test_what_offers_no_memory_is_refused() -> None:
    with pytest.raises(TypeError, match="neither DLPack nor"):
        calling.adopted("text")


# --- A worker's kernel ----------------------------------------------------------------------------------------


def kernel_of(code: bytes, threads: int) -> launching.LoadedKernel:
    of = SimpleNamespace(arguments=list, problem=SimpleNamespace(tensors=(), scalars=()), arrays={})
    rendered = Rendered("", "toy", "cuda", Launch((1,), (threads,)))
    return launching.LoadedKernel(rendered, code, of, replace(H200, max_threads_per_sm=2048))


def test_a_device_tells_the_occupancy_of_each_kernel(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = iter([8, 1])
    driver = SimpleNamespace(
        occupancyMaxActiveBlocksPerMultiprocessor=lambda function, threads, shared: next(blocks)
    )
    monkeypatch.setattr(launching, "driver", driver)
    monkeypatch.setattr(launching, "_kept_module", board.module)
    roomy, greedy = kernel_of(b"roomy", 128), kernel_of(b"greedy", 256)
    device = object.__new__(cuda.CudaDevice)
    device._readings = {"sm_clock_hz": 1e9}
    assert device.circumstances(roomy) == {"sm_clock_hz": 1e9, "occupancy": 0.5}
    assert device.circumstances(greedy) == {"sm_clock_hz": 1e9, "occupancy": 0.125}
    assert device.circumstances(lambda: None) == {"sm_clock_hz": 1e9}


def test_memory_that_is_short_is_a_reason_and_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(code: bytes) -> None:
        raise MemoryError("1 byte cannot be allocated")

    monkeypatch.setattr(launching, "_kept_module", load)
    with pytest.raises(LaunchFailed, match="cannot be loaded: out of memory: 1 byte") as caught:
        kernel_of(b"too large", 128)
    assert caught.value.device_unwell


def test_leave_is_asked_for_where_static_shared_memory_may_bring_a_launch_above_48_kb(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    driver = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8,
        funcSetAttribute=lambda function, attribute, size: sizes.append(size),
    )
    monkeypatch.setattr(launching, "driver", driver)
    for size in (0, 40 << 10, 45 << 10, 100 << 10):
        launching.function_of(board.module(), "gemm", size)
    assert sizes == [45 << 10, 100 << 10]


# --- Launches that may start while the one before them ends ---------------------------------------------------


def words(address: int, size: int, kind: Any = ctypes.c_uint64) -> list[int]:
    return list((kind * size).from_address(address))


class Library:
    """Stands for libcuda: reads what it is given back from memory, by the layout of CUDA's headers."""

    def __init__(self, version: int = 13000, sizes: tuple[int, ...] = ()) -> None:
        self.version, self.sizes, self.status = version, sizes, 0
        self.given: list[dict[str, Any]] = []
        self.cuLaunchKernelEx = Launcher(self)

    def cuDriverGetVersion(self, to: Any) -> int:  # noqa: N802  # the driver's name
        to._obj.value = self.version
        return 0


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


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    played = Library()
    monkeypatch.setattr(launching, "_library", lambda: played)
    launching._launch_early.cache_clear()
    yield played
    launching._launch_early.cache_clear()


def on(handle: int) -> Any:
    return SimpleNamespace(ptr=handle)


def test_the_driver_finds_geometry_stream_attribute_and_arguments(library: Library) -> None:
    map_ = np.arange(128, dtype=np.uint8).view("V128")
    library.sizes = (8, 4, 8, 8, 128, 2)
    function = Function("gemm", [])
    launch = launching.launcher(function, GEOMETRY, early=True)
    launch((1 << 41, np.int32(-5), np.float64(0.5), 0, map_, np.float16(2)), on(9))
    assert function.launched == []
    (given,) = library.given
    assert (given["sizes"], given["stream"]) == ([3, 2, 1, 64, 4, 1, 512], 9)
    assert (given["attribute"], given["count"], given["value"]) == (6, 1, bytes([1]).ljust(64, b"\0"))
    assert (given["function"], given["extra"]) == (77, None)
    assert given["parameters"] == [
        (1 << 41).to_bytes(8, "little"), np.int32(-5).tobytes(), np.float64(0.5).tobytes(), bytes(8),
        bytes(range(128)), np.float16(2).tobytes(),
    ]  # fmt: skip


def test_a_refusal_is_the_error_that_cupys_launches_raise(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(status: int) -> None:
        raise RuntimeError(f"refused with {status}")

    monkeypatch.setattr(launching, "driver", SimpleNamespace(check_status=refuse))
    library.status = 701
    with pytest.raises(RuntimeError, match="refused with 701"):
        launching.launcher(Function("", []), GEOMETRY, early=True)((), on(0))


def missing() -> Any:
    raise OSError("no libcuda.so.1")


@pytest.mark.parametrize(
    "found", [lambda: Library(12020), lambda: SimpleNamespace(cuDriverGetVersion=None), missing]
)
def test_a_driver_without_such_launches_has_ordinary_ones(
    found: Any, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "_library", found)
    function = Function("gemm", [])
    launching.launcher(function, GEOMETRY, early=True)((1, 2), on(3))
    assert function.launched == [("gemm", (3, 2, 1), (64, 4, 1), (1, 2), 512, 3)]


@pytest.mark.parametrize(("alone", "ordinary", "early"), [(False, 2, 1), (True, 1, 0)])
def test_what_is_early_follows_a_step_of_the_same_run(
    board: Board, library: Library, alone: bool, ordinary: int, early: int
) -> None:
    steps = [Step(f"step {number}", (1,), (32,), 0, ("x",), number == 1) for number in range(3)]
    packing = Packing("x", "packed", 64, "step 1")
    launch = Launch.of("step 0", steps, Workspace(64, regions=(("packed", 0),)), packings=(packing,))
    problem: Any = SimpleNamespace(tensors=[Tensor("x", (4,), "float32")], scalars=[])
    rendered = Rendered("", "step 0", "cuda", launch)
    run = launching.PreparedRun(rendered, board.module(), problem, packing if alone else None, alone)
    library.sizes = (8,)
    run([256], (), on(2), [512] if alone else [])
    assert (len(board.launched), len(library.given)) == (ordinary, early)


# --- Tensor maps ----------------------------------------------------------------------------------------------

MAP = TensorMap("map_a", "a", (128, 64), 128)
MAPPED = Launch.of("gemm", (Step("gemm", (1,), (32,), 0, ("map_a", "c", "k", "")),), maps=(MAP,))
HALF = GEMM.problem({"m": 200, "n": 64, "k": 72}, "bfloat16")


class Encoder:
    """Notes the arguments of cuTensorMapEncodeTiled, and writes the address into the map."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.status = 0

    def __call__(self, made: int, kind: int, rank: int, address: int, *rest: Any) -> int:
        sizes, pitches, box, steps, interleave, swizzle, promotion, fill = rest
        self.calls.append({
            "kind": kind, "sizes": list(sizes), "pitches": list(pitches)[: rank - 1], "box": list(box),
            "steps": list(steps), "modes": (interleave, swizzle, promotion, fill), "aligned": made % 64 == 0,
        })  # fmt: skip
        ctypes.c_uint64.from_address(made).value = address
        return self.status


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> Encoder:
    played = Encoder()
    monkeypatch.setattr(tensor_maps, "_encode", lambda: played)
    tensor_maps.encoded.cache_clear()
    return played


def test_a_map_describes_the_tensor_from_its_contiguous_dim_on(encoder: Encoder) -> None:
    made = tensor_maps.encoded(MAP, HALF.tensors[0], 1 << 20)
    assert encoder.calls == [{
        "kind": 9, "sizes": [72, 200], "pitches": [144], "box": [64, 128], "steps": [1, 1],
        "modes": (0, 3, 2, 0), "aligned": True,
    }]  # fmt: skip
    assert (made.size, made.itemsize) == (1, 128), "CuPy passes it by value"
    assert int.from_bytes(made.tobytes()[:8], "little") == 1 << 20
    tensor_maps.encoded(TensorMap("v", "v", (64,)), Tensor("v", (100,), "float32"), 256)
    tensor_maps.encoded(TensorMap("x", "x", (2, 8, 8)), Tensor("x", (5, 6, 8), "float64"), 256)
    assert [call["pitches"] for call in encoder.calls[1:]] == [[], [64, 384]]


@pytest.mark.parametrize(("columns", "wanted", "given"), [(64, 256, 3), (64, 128, 2), (72, 256, 2)])
def test_a_miss_brings_one_line_where_rows_begin_amid_lines(
    columns: int, wanted: int, given: int, encoder: Encoder
) -> None:
    tensor_maps.encoded(replace(MAP, promotion=wanted), Tensor("a", (200, columns), "bfloat16"), 1 << 20)
    assert encoder.calls[0]["modes"][2] == given


@pytest.mark.parametrize(("shape", "address"), [((200, 72), 8), ((200, 71), 256)])
def test_what_begins_amid_16_bytes_is_refused(encoder: Encoder, shape: tuple[int, int], address: int) -> None:
    with pytest.raises(LaunchFailed, match="begin at multiples of 16 bytes"):
        tensor_maps.encoded(MAP, Tensor("a", shape, "bfloat16"), address)


def test_a_refusal_of_the_driver_is_told(encoder: Encoder) -> None:
    encoder.status = 1
    with pytest.raises(LaunchFailed, match="status 1"):
        tensor_maps.encoded(MAP, HALF.tensors[0], 1 << 20)


def test_a_run_is_given_its_maps_by_name_which_are_made_once(board: Board, encoder: Encoder) -> None:
    run = launching.PreparedRun(Rendered("", "gemm", "cuda", MAPPED), board.module(), HALF)
    for _ in range(2):
        run([256, 512, 1024], [np.int32(1)] * 3, on(1))
    (first, *rest), (again, *_) = (each[3] for each in board.launched)
    assert first is again
    assert list(rest) == [1024, 1, 0]
    assert len(encoder.calls) == 1


def test_the_map_of_a_padded_tensor_has_its_larger_shape(board: Board, encoder: Encoder) -> None:
    rendered = Rendered("", "gemm", "cuda", replace(MAPPED, padded=(Padded("a", (200, 80)),)))
    launching.PreparedRun(rendered, board.module(), HALF)([256, 512, 1024], [np.int32(1)] * 3, on(1))
    assert (encoder.calls[0]["sizes"], encoder.calls[0]["pitches"]) == ([80, 200], [160])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: TensorMap("x", "a", (64, 64), 48), "swizzle of tensor map 'x' is one of 0, 32, 64, 128 bytes"),
        (lambda: replace(MAP, promotion=64), "promotion of tensor map .map_a. .*got 64"),
        (lambda: TensorMap("x", "a", (64, 300)), "1 to 256 elements along each"),
        (lambda: Launch((1,), (32,), maps=(MAP,)), "tensor maps are arguments of steps"),
    ],
)
def test_wrong_declarations_are_refused(wrong: Any, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        wrong()
