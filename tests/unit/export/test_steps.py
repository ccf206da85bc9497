"""Kernels whose run is several launches with one workspace: bound, called, written down. No GPU."""

import ctypes
import json
from dataclasses import replace
from pathlib import Path
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


def test_hashes_follow_the_steps_and_are_what_they_were_before_there_were_such() -> None:
    config = Config({"BLOCK": 32})
    launches = {
        "13f33939ba5e42ad": launch(),
        "42cb0e219acd9599": Launch((3,), (32,), 0, (), None, Workspace(64)),
        "": replace(launch(), steps=launch().steps[:1]),
    }
    hashes = [
        replace(KERNEL, launch=lambda p, c, of=of: of).launch_hash(PROBLEM, config) for of in launches.values()
    ]
    assert hashes[:2] == [*launches][:2], "a record from before still is of this launch"
    assert len({*hashes, hash_of_launch({}, with_early(launch())), hash_of_launch({}, launch())}) == 4


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
    rules = json.loads(export(*EARLY_CASE, "binary", tmp_path)[1].read_text())["rules"]
    assert rules["workspace"]["regions"] == [["flags", 0], ["doubles", 256]]
    assert [(step["entry"], step["early"]) for step in rules["steps"]] == [("doubled", False), ("added", True)]
    assert rules["steps"][1]["arguments"] == ["x", "doubles", "y", "", "n"]


class Driver:
    """Stands for the driver, and notes what it launches."""

    def __init__(self) -> None:
        self.status, self.launched = 0, list[tuple[Any, ...]]()

    def cuDriverGetVersion(self, to: Any) -> int:  # noqa: N802  # the driver's name
        to._obj.value = 13000
        return 0

    def cuLaunchKernelEx(self, config: Any, function: Any, parameters: Any, extra: None) -> int:  # noqa: N802
        given, early = config._obj, config._obj.attributes[0]
        last = ctypes.cast(parameters[len(parameters) - 1], ctypes.POINTER(ctypes.c_int))[0]
        attributes = given.attribute_count, early.id, early.value[0]
        self.launched.append((function.value, list(given.sizes), given.stream, attributes, last))
        return self.status


def test_the_exported_module_launches_them_in_order_and_an_early_one_by_the_driver(
    tmp_path: Path, cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported(export(*CASE, "python", tmp_path)[0]).thrice(cupy.array(np.ones(50, np.float32)))
    (doubled, grid, block, given, _), (added, *_, last, _) = cupy.launches
    assert (doubled, added, grid, block) == ("doubled", "added", (2,), (32,))
    assert (len(given[1]), last[-1]) == (256, 50)
    driver = Driver()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    thrice, x = imported(export(*EARLY_CASE, "python", tmp_path)[0]).thrice, cupy.array(np.ones(50, np.float32))
    thrice(x)
    assert [name for name, *_ in cupy.launches[2:]] == ["doubled"]
    assert driver.launched == [(77, [2, 1, 1, 32, 1, 1, 0], 9, (1, 6, 1), 50)]
    driver.status = 701
    with pytest.raises(RuntimeError, match="cuLaunchKernelEx failed with status 701"):
        thrice(x)
