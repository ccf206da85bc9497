"""A kernel on a caller's arrays and streams. No GPU: what CuPy would do is noted."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy")

from fixtures.fake_gpu import H200

from tuner.declare.catalogue import builtin
from tuner.declare.kernel import Rendered
from tuner.declare.launch import Launch, Padded, Pieces, Step, Workspace
from tuner.devices.cuda import calling

PROBLEM = builtin().operation("gemm").problem({"m": 6, "n": 5, "k": 4})
PLAIN = Launch((7, 2), (32,), 1024)


class Board:
    """Notes what is launched, and says which stream and device are current."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, ...]] = []
        self.stream, self.device, self.loaded = (11, 0), 0, 0

    def function_of(self, rendered: Rendered, code: bytes) -> tuple[Any, Any]:
        self.loaded += 1
        return f"module {self.loaded}", lambda *given: self.launched.append(given)


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    made = Board()
    compiler = SimpleNamespace(compile=lambda *_: SimpleNamespace(code=b"cubin"), close=lambda: None)
    monkeypatch.setattr(calling, "NvrtcCompiler", lambda: compiler)
    monkeypatch.setattr(calling, "function_of", made.function_of)
    monkeypatch.setattr(calling, "_current_stream", lambda: made.stream)
    monkeypatch.setattr(calling, "workspace", lambda wanted: SimpleNamespace(bytes=wanted.bytes))
    monkeypatch.setattr(calling.runtime, "getDevice", lambda: made.device)
    monkeypatch.setattr(calling.cupy.cuda, "Device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(calling, "_KEPT", calling._Kept())
    monkeypatch.setattr(calling, "_FUNCTIONS", {})
    return made


def loaded(launch: Launch) -> calling.Loaded:
    return calling.Loaded(Rendered("", "gemm", "cuda", launch), PROBLEM, H200, 0)


def test_a_launch_takes_the_arrays_and_then_the_scalars_typed(board: Board) -> None:
    kernel = loaded(PLAIN)
    kernel.run("a", "b", "c")
    ((grid, block, given, shared),) = board.launched
    assert (grid, block, shared) == ((7, 2, 1), (32, 1, 1), 1024)
    assert given == ("a", "b", "c", 6, 5, 4)
    assert [type(each) for each in given[3:]] == [np.int32] * 3


def test_the_shortest_run_is_the_same_launch(board: Board) -> None:
    loaded(PLAIN).run("a", "b", "c")
    loaded(PLAIN).shortest_run("a", "b", "c")
    assert board.launched[0] == board.launched[1]
    beside = loaded(Launch((1,), (32,), workspace=Workspace(4096)))
    beside.shortest_run("a", "b", "c")
    assert board.launched[2][2][:3] == ("a", "b", "c")
    assert board.launched[2][2][-1].bytes == 4096


def test_another_librarys_stream_is_launched_on_by_its_handle(board: Board) -> None:
    loaded(PLAIN).run_at(4711, 100, 200, 300)
    ((*_, given, shared, stream),) = board.launched
    assert (given[:3], shared, stream.ptr) == ((100, 200, 300), 1024, 4711)


def test_a_stream_keeps_its_workspace_and_no_two_share_one(board: Board) -> None:
    kernel = loaded(Launch((1,), (32,), workspace=Workspace(4096)))
    for stream in (1, 1, 2):
        board.stream = (stream, 0)
        kernel.run("a", "b", "c")
    first, again, other = (given[-1] for _, _, given, _ in board.launched)
    assert first is again
    assert first is not other


def test_what_is_kept_for_streams_is_bounded(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "KEPT_BYTES", 10000)
    monkeypatch.setattr(calling, "KEPT_PART", 1 << 62)
    kernel = loaded(Launch((1,), (32,), workspace=Workspace(4096)))
    for stream in (1, 2, 3, 1):
        board.stream = (stream, 0)
        kernel.run("a", "b", "c")
    memory = [given[-1] for _, _, given, _ in board.launched]
    assert memory[3] is not memory[0]
    assert len(calling._KEPT._values) == 2


def test_a_large_gpu_keeps_a_large_workspace(board: Board) -> None:
    launch = Launch((1,), (32,), workspace=Workspace(calling.KEPT_BYTES + 1))
    large = replace(H200, memory_bytes=calling.KEPT_PART * (calling.KEPT_BYTES + 1))
    kernel = calling.Loaded(Rendered("", "gemm", "cuda", launch), PROBLEM, large, 0)
    for _ in range(2):
        kernel.run("a", "b", "c")
    first, again = (given[-1] for _, _, given, _ in board.launched)
    assert first is again


def test_steps_are_given_what_the_stream_keeps(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []

    def steps_of(module: Any, function: Any, launch: Launch, given: Any, made: dict[str, Any]) -> list[Any]:
        seen.append((module, made, given.arrays["a"]))
        return [lambda: made.setdefault("a", object())]

    monkeypatch.setattr(calling, "steps_of", steps_of)
    monkeypatch.setattr(calling.cupy, "ndarray", lambda shape, dtype, memory: (shape, dtype, memory))
    pieces = Launch((1,), (32,), padded=(Padded("a", (8, 32)),), pieces=Pieces("piece", "b", 256))
    kernel, array = loaded(pieces), SimpleNamespace(data="memory")
    assert not kernel.simple
    for stream in (1, 1, 2):
        board.stream = (stream, 0)
        kernel.run(array, array, array)
    assert seen[0][0] == seen[1][0] != seen[2][0], "constant memory belongs to a module"
    assert seen[0][1] is seen[1][1]
    assert seen[0][1] is not seen[2][1]
    assert seen[0][2] == ((6, 4), "float32", "memory")


def test_shapes_share_what_is_loaded_unless_they_need_other_shared_memory(board: Board) -> None:
    for launch in (PLAIN, Launch((9, 9), (32,), 1024), Launch((7, 2), (32,), 2048)):
        loaded(launch)
    assert board.loaded == 2


def test_padding_that_changes_no_shape_is_none(board: Board) -> None:
    assert loaded(Launch((1,), (32,), padded=(Padded("a", (6, 4)),))).simple


def test_what_offers_no_memory_is_refused() -> None:
    with pytest.raises(TypeError, match="neither DLPack nor"):
        calling.adopted("text")


def test_a_run_of_several_launches_shares_a_workspace_of_its_stream(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    def noted(entry: str) -> Any:
        return lambda *given: board.launched.append((entry, *given))

    monkeypatch.setattr(
        board, "function_of", lambda rendered, code: (SimpleNamespace(get_function=noted), None)
    )
    monkeypatch.setattr(calling, "function_of", board.function_of)
    monkeypatch.setattr(calling, "workspace", lambda wanted: np.zeros(wanted.bytes, np.uint8))
    steps = (
        Step("first", (7,), (32,), 0, ("a", "packed", "k")),
        Step("second", (9,), (64,), 512, ("packed", "c", "")),
    )
    kernel = loaded(Launch.of("second", steps, Workspace(1024, 256, (("packed", 256),))))
    assert kernel.shortest_run == kernel.run
    for stream in (1, 1, 2):
        board.stream = (stream, 0)
        kernel.run("a", "b", "c")
    assert [each[0] for each in board.launched] == ["first", "second"] * 3
    first, second = board.launched[:2]
    assert (first[1:3], second[1:3], second[4]) == (((7, 1, 1), (32, 1, 1)), ((9, 1, 1), (64, 1, 1)), 512)
    assert (first[3][0], first[3][2], second[3][1:]) == ("a", 4, ("c", 0))
    memory = [each[3][1] for each in board.launched[::2]]
    assert len(memory[0]) == 768
    assert memory[0] is memory[1]
    assert memory[0] is not memory[2]
