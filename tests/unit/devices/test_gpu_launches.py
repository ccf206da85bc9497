"""What a CUDA kernel is launched with, in a worker and for callers. No GPU: CuPy and the driver are played."""

from __future__ import annotations

import contextlib
import ctypes
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
from tuner.devices.cuda import calling, launching, native
from tuner.devices.protocol import LaunchFailed

GEMM = builtin().operation("gemm")
PROBLEM = GEMM.problem({"m": 6, "n": 5, "k": 4})
PLAIN = Launch((7, 2), (32,), 1024)
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
    """Plays prepared runs, and notes what they launch: entry, grid, block, arguments, shared bytes, stream."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, ...]] = []
        self.early: list[bool] = []
        self.modules, self.status = 0, 0
        self.entries: list[str] = []

    def prepared(self, steps: Any, tensors: int) -> Any:
        """Stands for a `NativeRun`."""

        def run(stream: int, *addresses: int) -> int:
            assert len(addresses) == tensors
            for step in kept:
                self.play(step, stream, addresses)
            return self.status

        kept = list(steps)
        return run

    def play(self, step: Any, stream: int, addresses: tuple[int, ...]) -> None:
        """Notes a step of a run."""

        def value(argument: Any) -> Any:
            if isinstance(argument, native.TensorAddress):
                return addresses[argument.tensor] + argument.offset_bytes
            if isinstance(argument, native.MapTemplate):
                return argument
            return int.from_bytes(argument, "little")

        if isinstance(step, native.DeviceCopy):
            self.launched.append(("constant", step.target, value(step.source), step.size_bytes, stream))
            return
        given = tuple(map(value, step.arguments))
        entry = self.entries[step.function]
        self.launched.append((entry, step.grid, step.block, given, step.shared_bytes, stream))
        self.early.append(step.early)

    def function(self, entry: str) -> Any:
        """Stands for a function of CuPy's."""
        self.entries.append(entry)
        return SimpleNamespace(ptr=len(self.entries) - 1)

    def module(self, code: bytes = b"") -> Any:
        """Stands for CuPy's."""
        self.modules += 1
        number = self.modules
        return SimpleNamespace(get_function=self.function, get_global_var=lambda name: 7000 + number)


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    made = Board()
    runtime = SimpleNamespace(
        getDevice=lambda: 0, streamPerThread=2, driverGetVersion=lambda: 13000,
        streamIsCapturing=lambda stream: False, CUDARuntimeError=RuntimeError,
    )  # fmt: skip
    launching.can_start_early.cache_clear()
    monkeypatch.setattr(launching, "NativeRun", made.prepared)
    for module in (calling, launching):
        monkeypatch.setattr(module, "runtime", runtime)
        monkeypatch.setattr(module, "load_module", made.module)
    monkeypatch.setattr(calling, "compiled_code", lambda *_: b"cubin")
    monkeypatch.setattr(calling, "_RUNS", {})
    monkeypatch.setattr(calling, "_MODULES", {})
    monkeypatch.setattr(launching, "_COUNTERS", {})
    monkeypatch.setattr(launching, "workspace", lambda wanted: Memory(wanted.bytes))
    monkeypatch.setattr(launching.cupy, "zeros", Memory)
    monkeypatch.setattr(launching, "helper", lambda source, entry: made.function(entry))
    monkeypatch.setattr(calling.cupy.cuda, "Device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(calling, "_on_stream", lambda handle: contextlib.nullcontext())
    monkeypatch.setattr(calling, "relaxed", contextlib.nullcontext)
    return made


def loaded(launch: Launch, device: Any = H200) -> calling.Loaded:
    return calling.Loaded(Rendered("", "gemm", "cuda", launch), PROBLEM, device, 0)


def arrays() -> list[Any]:
    return [SimpleNamespace(data=SimpleNamespace(ptr=address)) for address in (A, B, C)]


def test_a_launch_takes_addresses_then_typed_scalars(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded(PLAIN).run_at(11, A, B, C)
    ((_, grid, block, given, shared, stream),) = board.launched
    assert (grid, block, shared, stream) == ((7, 2, 1), (32, 1, 1), 1024, 11)
    assert given == (A, B, C, 6, 5, 4)
    other = loaded(PLAIN).with_scalars([np.int32(8), np.int32(9), np.int32(7)])
    other.run_at(11, A, B, C)
    assert board.launched[1][3] == (A, B, C, 8, 9, 7)
    refused: list[int] = []
    monkeypatch.setattr(launching, "driver", SimpleNamespace(check_status=refused.append))
    board.status = 701
    loaded(PLAIN).run_at(1, A, B, C)
    assert refused == [701], "CuPy raises the error of its own launches"


@pytest.mark.parametrize(
    ("kept_bytes", "memory_bytes", "kept"),
    [(10_000, 0, False), (10_000, 20_000 * calling.KEPT_PART, True)],
    ids=["too much is dropped", "a large GPU keeps more"],
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
    assert calling._RUNS == {}


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
    assert copy_in == (larger_a, 32, A, 4, 6, 4, *[0] * 6)
    assert copy_out == (C, 5, larger_c, 8, 6, 5, *[0] * 6)
    board.launched.clear()
    loaded(Launch((1,), (32,), padded=(Padded("a", (8, 32)), Padded("b", (8, 600))))).run_at(1, A, B, C)
    copies, run = board.launched
    assert copies[1] == (1, 1, 2), "one launch has both"
    assert copies[3] == (run[3][0], 32, A, 4, 6, 4, run[3][1], 600, B, 5, 4, 5)


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


# --- Launches that may start while the one before them ends ---------------------------------------------------


@pytest.mark.parametrize(("alone", "driver", "early"), [(False, 13000, 1), (True, 13000, 0), (False, 12020, 0)])
def test_what_is_early_follows_a_step_of_the_same_run(
    board: Board, monkeypatch: pytest.MonkeyPatch, alone: bool, driver: int, early: int
) -> None:
    monkeypatch.setattr(launching.runtime, "driverGetVersion", lambda: driver)
    steps = [Step(f"step {number}", (1,), (32,), 0, ("x",), number == 1) for number in range(3)]
    packing = Packing("x", "packed", 64, "step 1")
    launch = Launch.of("step 0", steps, Workspace(64, regions=(("packed", 0),)), packings=(packing,))
    problem: Any = SimpleNamespace(tensors=[Tensor("x", (4,), "float32")], scalars=[])
    rendered = Rendered("", "step 0", "cuda", launch)
    rendered = replace(rendered, launch=launch.packing_alone(packing) if alone else launch)
    launching.PreparedRun(rendered, board.module(), problem, (), {"packed": 512})(2, 256)
    assert (len(board.launched), sum(board.early)) == (1 if alone else 3, early)


# --- The native call ------------------------------------------------------------------------------------------

WORD, NARROW = ctypes.c_uint64, ctypes.c_int
#: What `cuTensorMapEncodeTiled` takes.
ENCODED = (WORD, NARROW, NARROW, *[WORD] * 5, *[NARROW] * 4)


def words(address: int, size: int, kind: Any = WORD) -> list[int]:
    return list((kind * size).from_address(address))


class PlayedDriver:
    """Stands for libcuda: reads what it is given back from memory, by the layout of CUDA's headers."""

    def __init__(self, sizes: tuple[int, ...] = ()) -> None:
        self.sizes, self.status = sizes, 0
        self.calls: list[tuple[Any, ...]] = []
        kinds = {"launch": [WORD] * 4, "encode": ENCODED, "copy": [WORD] * 4}
        self.functions = [ctypes.CFUNCTYPE(NARROW, *kind)(getattr(self, name)) for name, kind in kinds.items()]
        self.driver = [ctypes.cast(each, ctypes.c_void_p).value or 0 for each in self.functions]

    def launch(self, config: int, function: int, parameters: int, extra: int) -> int:
        attribute, count = words(config + 40, 1)[0], words(config + 48, 1, ctypes.c_uint)[0]
        early = (words(attribute, 1, ctypes.c_int)[0], words(attribute + 8, 1)[0]) if count else None
        pointers = words(parameters, len(self.sizes))
        given = [ctypes.string_at(*each) for each in zip(pointers, self.sizes, strict=True)]
        stream = words(config + 32, 1)[0]
        self.calls.append(("launch", function, words(config, 7, ctypes.c_uint), stream, early, given, extra))
        return self.status

    def encode(self, made: int, kind: int, rank: int, address: int, *rest: int) -> int:
        sizes, pitches, box, steps, *modes = rest
        described = words(sizes, rank), words(pitches, rank - 1)
        boxes = words(box, rank, ctypes.c_uint), words(steps, rank, ctypes.c_uint)
        self.calls.append(("encode", kind, address, *described, *boxes, modes, made % 64))
        WORD.from_address(made).value = address
        return self.status

    def copy(self, *given: int) -> int:
        self.calls.append(("copy", *given))
        return self.status


def test_the_driver_finds_geometry_stream_attribute_and_arguments() -> None:
    played = PlayedDriver((8, 4, 8, 2))
    arguments = (native.TensorAddress(1, 16), np.int32(-5).tobytes(), bytes(8), np.float16(2).tobytes())
    launches = [
        native.KernelLaunch(77, (3, 2, 1), (64, 4, 1), 512, arguments, early) for early in (False, True)
    ]
    run = native.NativeRun(launches, 2, played.driver)
    assert run(9, 1 << 40, 1 << 41) == 0
    given = [((1 << 41) + 16).to_bytes(8, "little"), np.int32(-5).tobytes(), bytes(8), np.float16(2).tobytes()]
    common = ("launch", 77, [3, 2, 1, 64, 4, 1, 512], 9)
    assert played.calls == [(*common, None, given, 0), (*common, (6, 1), given, 0)]
    assert run(10, 0, 0) == 0
    assert (played.calls[2][3], played.calls[2][5][0]) == (10, (16).to_bytes(8, "little"))


def test_a_copy_is_queued_in_its_turn_and_a_refusal_ends_the_run() -> None:
    played = PlayedDriver()
    copy = native.DeviceCopy(7000, native.TensorAddress(0, 48), 32)
    run = native.NativeRun([copy, native.KernelLaunch(1, (1, 1, 1), (1, 1, 1), 0, ())], 1, played.driver)
    assert run(5, 100) == 0
    assert [call[0] for call in played.calls] == ["copy", "launch"]
    assert played.calls[0] == ("copy", 7000, 148, 32, 5)
    played.status = 701
    assert run(5, 100) == 701
    assert len(played.calls) == 3


MAP = TensorMap("map_a", "a", (128, 64), 128)
MAPPED = Launch.of("gemm", (Step("gemm", (1,), (32,), 0, ("map_a", "c", "k", "")),), maps=(MAP,))
HALF = GEMM.problem({"m": 200, "n": 64, "k": 72}, "bfloat16")


def template(wanted: TensorMap, tensor: Tensor) -> native.MapTemplate:
    return native.MapTemplate(wanted, tensor, native.TensorAddress(0))


def test_a_map_describes_the_tensor_from_its_contiguous_dim_on_and_is_encoded_with_each_call() -> None:
    played = PlayedDriver((128,))
    launch = native.KernelLaunch(1, (1, 1, 1), (1, 1, 1), 0, (template(MAP, HALF.tensors[0]),))
    run = native.NativeRun([launch], 1, played.driver)
    for address in (1 << 20, 1 << 21):
        assert run(3, address) == 0
    encoded, launched = played.calls[2:]
    assert encoded == ("encode", 9, 1 << 21, [72, 200], [144], [64, 128], [1, 1], [0, 3, 2, 0], 0)
    assert launched[5][0][:8] == (1 << 21).to_bytes(8, "little")
    cube = template(TensorMap("x", "x", (2, 8, 8)), Tensor("x", (5, 6, 8), "float64"))
    assert (cube.pitches_bytes, cube.promotion) == ((64, 384), 2), "a miss brings one line of 128 bytes"
    with pytest.raises(LaunchFailed, match="begin at multiples of 16 bytes"):
        template(MAP, Tensor("a", (200, 71), "bfloat16"))


def test_a_run_is_given_its_maps_by_name_and_those_of_padded_tensors_have_their_shape(board: Board) -> None:
    scalars = [np.int32(1)] * 3
    launching.PreparedRun(Rendered("", "gemm", "cuda", MAPPED), board.module(), HALF, scalars)(
        1, 256, 512, 1024
    )
    ((_, _, _, (made, *rest), _, _),) = board.launched
    assert (made.address, made.tensor.shape) == (native.TensorAddress(0), (200, 72))
    assert rest == [1024, 1, 0]
    rendered = Rendered("", "gemm", "cuda", replace(MAPPED, padded=(Padded("a", (200, 80)),)))
    launching.PreparedRun(rendered, board.module(), HALF, scalars)(1, 256, 512, 1024)
    (larger, *_) = board.launched[-1][3]
    assert (larger.tensor.shape, larger.pitches_bytes) == ((200, 80), (160,))
