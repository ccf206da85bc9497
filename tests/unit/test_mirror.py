"""Every module has its test: a file of the same name in the same place, or an entry in covered.toml."""

from __future__ import annotations

import ast
import re
import runpy
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
SCRIPT = SimpleNamespace(**runpy.run_path(str(ROOT / "scripts/house"), run_name="house"))
HOUSE = SCRIPT.House(ROOT)
TABLES = tomllib.loads((TESTS / "unit/covered.toml").read_text(encoding="utf-8"))
COVERED, BESIDE = TABLES["covered"], TABLES["beside"]


def defined(name: str) -> set[str]:
    """Functions, classes and variables that a module defines at its top."""
    found = set()
    for node in HOUSE.modules[name].tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found |= {each.id for each in targets if isinstance(each, ast.Name)}
    return found


#: Modules that need a test: all but doors, migrations, and packages that define nothing.
MODULES = sorted(
    name
    for name, module in HOUSE.modules.items()
    if name not in (*SCRIPT.DOORS, "tuner.version")
    and not name.startswith(SCRIPT.MIGRATIONS)
    and (not module.is_package or defined(name) - {"__all__"})
)
OWN = {
    path.relative_to(TESTS / "unit").as_posix()
    for path in (TESTS / "unit").rglob("test_*.py")
    if path.relative_to(TESTS / "unit").as_posix() not in BESIDE
}


def preference(module: str) -> tuple[int, bool]:
    """The longest name fits best; of a package and a module of one name, the module does."""
    return len(module.rpartition(".")[2]), not HOUSE.modules[module].is_package


def mirrored(file: str) -> str | None:
    """The module whose name a test file, relative to `tests/unit`, bears, in the place where it belongs."""
    *folders, stem = Path(file).with_suffix("").parts
    fitting = []
    for module in HOUSE.modules:
        *packages, last = module.split(".")[1:] or [""]
        places = [packages, [*packages, last]] if HOUSE.modules[module].is_package else [packages]
        if folders in places and f"{stem}_".startswith(f"test_{last}_"):
            fitting.append(module)
    return max(fitting, key=preference, default=None)


def leads_to(word: str, module: str) -> bool:
    """Whether a module holds a word, or is imported, through others too, by one that defines it."""
    if re.search(rf"\b{re.escape(word)}\b", HOUSE.modules[module].path.read_text(encoding="utf-8")):
        return True
    sources = {name for name in HOUSE.modules if word in defined(name) or name.endswith(f".{word}")}
    waiting = list(sources)
    while waiting:
        fresh = HOUSE.imports[waiting.pop()] - sources
        sources |= fresh
        waiting += fresh
    return module in sources


def test_every_module_has_its_test() -> None:
    have = {mirrored(file) for file in OWN}
    without = set(MODULES) - have - COVERED.keys()
    assert without == set(), "write their tests, or name in covered.toml the tests that cover them"
    assert have & COVERED.keys() == set(), "these have tests of their own: take them out of covered.toml"
    assert COVERED.keys() - HOUSE.modules.keys() == set(), "covered.toml names modules that are not there"


@pytest.mark.parametrize("file", sorted({file for file, _ in COVERED.values()}))
def test_entries_name_tests_that_reach_the_module(file: str) -> None:
    assert (TESTS / file).is_file(), f"covered.toml names tests/{file}, which is not there"
    text = (TESTS / file).read_text(encoding="utf-8")
    entries = {module: word for module, (other, word) in COVERED.items() if other == file}
    absent = {word for word in entries.values() if not re.search(rf"\b{re.escape(word)}\b", text)}
    assert absent == set(), f"tests/{file} does not hold these words"
    astray = {module: word for module, word in entries.items() if not leads_to(word, module)}
    assert astray == {}, "these words lead to other modules"


def test_every_test_file_follows_a_module() -> None:
    assert {file for file in OWN if not mirrored(file)} == set(), "name them after modules, or give reasons"


def test_reasons_are_given_for_files_that_are_there() -> None:
    assert {file for file in BESIDE if not (TESTS / "unit" / file).is_file()} == set()
    assert all(len(reason) > 10 for reason in BESIDE.values())


def test_the_rules_tell_right_from_wrong() -> None:
    assert mirrored("store/test_store.py") == "tuner.store"
    assert mirrored("devices/test_detect_gpus.py") == "tuner.devices.detect"
    assert mirrored("devices/test_cpu_features.py") == "tuner.devices.cpu_features"
    assert mirrored("devices/test_detection.py") is None
    assert mirrored("store/test_detect.py") is None
    assert leads_to("open_study", "tuner.study.recorder")
    assert not leads_to("pack_samples", "tuner.study.recorder")
