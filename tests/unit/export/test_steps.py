"""Kernels whose run is several launches with one workspace: bound, called, written down. No GPU."""

from __future__ import annotations

import ctypes
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fixtures.exported import GXX, champion, imported, run_on_host

from tuner.declare.catalogue import from_file
from tuner.declare.kernel import render
from tuner.declare.launch import Launch, Pieces, Step, Workspace, hash_of_launch
from tuner.declare.space import Config
from tuner.errors import DeclarationError
from tuner.export import export

FILE = Path(__file__).resolve().parents[2] / "fixtures" / "several_launches.py"
CATALOGUE = from_file(FILE)
KERNEL = CATALOGUE.kernels[0]
PROBLEM = CATALOGUE.operation("thrice").problem({"n": 100})
CASE = (champion(KERNEL, PROBLEM, {"BLOCK": 32}), KERNEL, PROBLEM)
#: The same with a second step that may start while the first ends.
EARLY = replace(KERNEL, launch=lambda p, c: with_early(KERNEL.launch(p, c)))
EARLY_CASE = (champion(EARLY, PROBLEM, {"BLOCK": 32}), EARLY, PROBLEM)


def with_early(found: Launch) -> Launch:
    first, second = found.steps
    return replace(found, steps=(first, replace(second, early=True)))


def launch() -> Launch:
    found = render(KERNEL, PROBLEM, Config({"BLOCK": 32})).launch
    assert found is not None
    return found


def test_a_launch_travels_as_json_and_its_hash_follows_the_steps() -> None:
    assert Launch.from_json(json.loads(json.dumps(asdict(launch())))) == launch()
    other = replace(launch(), steps=launch().steps[:1])
    config = Config({"BLOCK": 32})
    assert replace(KERNEL, launch=lambda p, c: other).launch_hash(PROBLEM, config) != KERNEL.launch_hash(
        PROBLEM, config
    )


def test_an_early_step_travels_and_changes_the_hash_and_text_from_before_reads_as_ordinary() -> None:
    first, second = launch().steps
    early = replace(launch(), steps=(first, replace(second, early=True)))
    told = json.loads(json.dumps(asdict(early)))
    assert Launch.from_json(told) == early
    for step in told["steps"]:
        del step["early"]
    assert Launch.from_json(told) == launch()
    hashes = {hash_of_launch({}, each) for each in (early, launch(), Launch.from_json(told))}
    assert len(hashes) == 2


def test_a_hash_from_before_steps_could_be_early_is_the_same() -> None:
    assert KERNEL.launch_hash(PROBLEM, Config({"BLOCK": 32})) == "13f33939ba5e42ad"


def test_fields_that_are_empty_change_no_hash() -> None:
    plain, spelt_out = (
        Launch((3,), (32,), 0, (), None, Workspace(64)),
        Launch((3,), (32,), workspace=Workspace(64, 0, ()), steps=()),
    )
    config = Config({"BLOCK": 32})
    hashes = {
        replace(KERNEL, launch=lambda p, c, of=of: of).launch_hash(PROBLEM, config) for of in (plain, spelt_out)
    }
    # As it was before there were steps: a record of then still is of this launch.
    assert hashes == {"42cb0e219acd9599"}


def test_a_main_step_that_is_none_and_steps_beside_pieces_are_refused() -> None:
    with pytest.raises(DeclarationError, match=r"main= is the entry of a step \(one\), got 'two'"):
        Launch.of("two", (Step("one", (1,), (32,)),))
    with pytest.raises(DeclarationError, match="a launch has steps or pieces, got both"):
        Launch((1,), (32,), pieces=Pieces("piece", "x", 4), steps=(Step("one", (1,), (32,)),))
    with pytest.raises(DeclarationError, match=r"an early step follows another one, .* 'one' is the f"):
        Launch.of("one", (Step("one", (1,), (32,), early=True), Step("two", (1,), (32,))))


@GXX
def test_the_exported_main_finds_it_right(tmp_path: Path) -> None:
    (path,) = export(*CASE, "source", tmp_path)
    code, told = run_on_host(path, launched=2)
    assert (code, told.splitlines()[-1]) == (0, "PASSED"), told
    assert run_on_host(path, 1, launched=2)[0] == 0
    code, told = run_on_host(path, change=("= 2 * x[i]", "= 3 * x[i]"), launched=2)
    assert (code, told.splitlines()[-1]) == (1, "FAILED"), told


@GXX
def test_an_exported_main_launches_early_what_is_early(tmp_path: Path) -> None:
    (path,) = export(*EARLY_CASE, "source", tmp_path)
    assert path.read_text().count("status = cudaLaunchKernelEx(&config, ::added, ") == 1
    code, told = run_on_host(path)
    assert (code, told.splitlines()[-1]) == (0, "PASSED"), told
    code, told = run_on_host(path, change=("attrs = &early", "attrs = nullptr"))
    assert code == 3, told


def test_the_binary_tells_the_launches(tmp_path: Path) -> None:
    rules = json.loads(export(*CASE, "binary", tmp_path)[1].read_text())["rules"]["steps"]
    assert rules["regions"] == {"flags": "0", "doubles": "256"}
    assert [each["entry"] for each in rules["launches"]] == ["doubled", "added"]
    assert rules["launches"][1]["arguments"] == ["x", "doubles", "y", "", "n"]
    assert [each["early"] for each in rules["launches"]] == [False, False]
    rules = json.loads(export(*EARLY_CASE, "binary", tmp_path)[1].read_text())["rules"]["steps"]
    assert [each["early"] for each in rules["launches"]] == [False, True]


class Board:
    """Stands for CuPy and for the driver; both note what they launch."""

    def __init__(self, version: int = 13000) -> None:
        self.version, self.status = version, 0
        self.launched: list[tuple[Any, ...]] = []

    def module(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> Any:
        """The exported module at a path, on this board."""
        board = self

        class Function:
            kernel = SimpleNamespace(ptr=77)

            def __init__(self, name: str) -> None:
                self.name = name

            def __call__(self, grid: Any, block: Any, given: Any, shared_mem: int) -> None:
                board.launched.append((self.name, grid, block, given))

        class Array(np.ndarray):
            """With an address as CuPy's arrays have it."""

            @property
            def data(self) -> Any:
                return SimpleNamespace(ptr=self.ctypes.data)

        def empty(*given: Any, **more: Any) -> Any:
            return np.zeros(*given, **more).view(Array)

        cupy = ModuleType("cupy")
        vars(cupy).update(
            ndarray=np.ndarray, empty=empty, ascontiguousarray=lambda array: array.view(Array),
            RawModule=lambda code, options: SimpleNamespace(get_function=Function),
            cuda=SimpleNamespace(
                runtime=SimpleNamespace(getDevice=lambda: 0),
                get_current_stream=lambda: SimpleNamespace(ptr=9),
            ),
        )  # fmt: skip
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        monkeypatch.setattr(ctypes, "CDLL", lambda name: self)
        return imported(path)

    def cuDriverGetVersion(self, to: Any) -> int:  # noqa: N802  # the driver's name
        to._obj.value = self.version
        return 0

    def cuLaunchKernelEx(self, config: Any, function: Any, parameters: Any, extra: None) -> int:  # noqa: N802
        told, early = config._obj, config._obj.attributes[0]
        last = ctypes.cast(parameters[len(parameters) - 1], ctypes.POINTER(ctypes.c_int))[0]
        attributes = told.attribute_count, early.id, early.value[0]
        self.launched.append((function.value, list(told.sizes), told.stream, attributes, len(parameters), last))
        return self.status


def test_the_exported_module_launches_them_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board()
    (path,) = export(*CASE, "python", tmp_path)
    board.module(monkeypatch, path).thrice(np.ones(50, np.float32))
    launched = board.launched
    assert [each[0] for each in launched] == ["doubled", "added"]
    assert launched[0][1:3] == ((2,), (32,))
    assert len(launched[0][3][1]) == 256
    assert launched[1][3][-1] == 50


def test_the_exported_module_launches_an_early_step_by_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = Board()
    (path,) = export(*EARLY_CASE, "python", tmp_path)
    thrice = board.module(monkeypatch, path).thrice
    thrice(np.ones(50, np.float32))
    assert board.launched[0][0] == "doubled"
    assert board.launched[1:] == [(77, [2, 1, 1, 32, 1, 1, 0], 9, (1, 6, 1), 5, 50)]
    board.status = 701
    with pytest.raises(RuntimeError, match="cuLaunchKernelEx failed with status 701"):
        thrice(np.ones(50, np.float32))


def test_the_exported_module_launches_as_ever_where_the_driver_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = Board(version=12020)
    (path,) = export(*EARLY_CASE, "python", tmp_path)
    board.module(monkeypatch, path).thrice(np.ones(50, np.float32))
    assert [each[0] for each in board.launched] == ["doubled", "added"]
