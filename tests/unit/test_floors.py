"""Which module imports which: only downwards, in no circle, and heavy libraries only where they belong.

Tests mirror the packages: `tests/unit/<package>` tests `tuner/<package>`, and no other folder is there.
"""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]


#: `scripts/house`, which reads what imports what.
SCRIPT = SimpleNamespace(**runpy.run_path(str(ROOT / "scripts/house"), run_name="house"))
HOUSE = SCRIPT.House(ROOT)
MODULES = HOUSE.modules
TABLE = HOUSE.table
FLOOR = {name: number for number, names in enumerate(TABLE["floors"], 1) for name in names}
top = SCRIPT.top


def test_every_module_has_one_floor() -> None:
    present = {top(module) for module in MODULES if top(module)}
    assert present - FLOOR.keys() == set(), "add these to a floor in tests/unit/floors.toml"
    assert FLOOR.keys() - present == set(), "these stand in tests/unit/floors.toml and are not there"
    assert len(FLOOR) == sum(map(len, TABLE["floors"])), "a name stands on two floors"


def test_the_drawing_in_the_docs_is_the_house() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = text.partition(SCRIPT.BEGIN)[2].partition(SCRIPT.END)[0]
    assert drawn.strip() == HOUSE.drawing(), "run scripts/house --draw"


def upwards() -> set[str]:
    """Imports to the same floor or a higher one, as "importer -> imported"."""
    return {
        f"{module} -> {other}"
        for module in MODULES
        for other in HOUSE.imports[module]
        if top(module) in FLOOR
        and top(other) in FLOOR
        and top(module) != top(other)
        and FLOOR[top(other)] >= FLOOR[top(module)]
    }


def test_imports_go_downwards() -> None:
    assert upwards() == set(TABLE["upwards"]["known"])


def test_the_core_comes_before_the_extras() -> None:
    highest = max(FLOOR[name] for name in TABLE["core"])
    assert all(FLOOR[name] > highest for name in TABLE["extras"])
    assert {*TABLE["core"], *TABLE["extras"]} == FLOOR.keys()
    assert {top(name) for name in MODULES if name.endswith(".extra")} == set(TABLE["extras"])


def test_the_house_keeps_its_budget() -> None:
    budget = TABLE["budget"]
    assert HOUSE.code_lines(MODULES) <= budget["lines"]
    assert HOUSE.code_lines([name for name in MODULES if top(name) in TABLE["core"]]) <= budget["core_lines"]
    assert len(MODULES) <= budget["files"]


def test_nothing_imports_the_package_itself() -> None:
    """It leads to all modules at first use: importing it would make a circle."""
    assert {name for name in MODULES if "tuner" in HOUSE.imports[name]} == set()
    assert set(MODULES["tuner"].imported(MODULES, at_load=True)) == {"tuner.version"}


def test_no_modules_import_each_other() -> None:
    assert HOUSE.circles == [], "imports inside functions count, too"


def test_heavy_libraries_are_imported_only_where_they_belong() -> None:
    importers: dict[str, set[str]] = {library: set() for library in TABLE["reserved"]}
    for name, module in MODULES.items():
        for each in module.imported(MODULES):
            importers.get(each.split(".")[0], set()).add(name)
    elsewhere = {
        (library, module)
        for library, rooms in TABLE["reserved"].items()
        for module in importers[library]
        if top(module) not in rooms
    }
    assert elsewhere == set()


def test_what_authors_need_comes_from_the_package_itself() -> None:
    """...and so does every kernel, operation and example of ours."""
    sources = [*ROOT.glob("kernels/**/*.py"), *ROOT.glob("examples/*.py")]
    assert len(sources) > 20
    for source in sources:
        text = source.read_text(encoding="utf-8").replace("from tuner.declare.rules import", "")
        assert "from tuner.declare" not in text, f"{source}: import it from tuner"
    code = (
        "from tuner import Constraint, Kernel, Launch, Operation, Problem, Tensor, Work, choice, powers_of_two"
        "; import tuner; assert set(tuner.__all__) <= set(dir(tuner)); "
        "assert all(getattr(tuner, name) is not None for name in tuner.__all__)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


RESERVED = " ".join(TABLE["reserved"])
#: What a program does -> libraries that it must not load for that.
LIGHT = {
    "import tuner": f"{RESERVED} numpy click rich",
    "import tuner.declare.catalogue, tuner.night.plan, tuner.results.record, tuner.devices.detect": RESERVED,
    "import tuner.study.study": "cupy cupy_backends numba llvmlite",
    "import tuner; tuner.best('gemm 8 8 8', 'cpu', db='sqlite:///none.db')": "sqlalchemy optuna cupy numba",
    "import tuner.store.published as told; told.champions()": "sqlalchemy optuna cupy numba numpy",
    "import tuner; tuner.connect('http://127.0.0.1:1')": "sqlalchemy optuna numpy fastapi uvicorn httpx",
}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("statement", LIGHT)
def test_what_needs_no_library_loads_none(statement: str) -> None:
    code = f"import sys\n{statement}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    command, environment = [sys.executable, "-c", code], os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert set(done.stdout.split()) & set(LIGHT[statement].split()) == set()


def test_every_package_has_a_folder_of_tests_and_every_folder_a_package() -> None:
    packages = {path.parent.name for path in (ROOT / "tuner").glob("*/__init__.py")}
    assert {path.parent.name for path in (ROOT / "tests/unit").glob("*/test_*.py")} == packages
