"""Which module imports which: only downwards, in no circle, and heavy libraries only where they belong."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tuner"
TABLE = tomllib.loads((Path(__file__).parent / "floors.toml").read_text(encoding="utf-8"))
FLOOR = {name: number for number, names in enumerate(TABLE["floors"]) for name in names}


def module_name(path: Path) -> str:
    """Dotted name of a file of the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def top(module: str) -> str:
    """The name under which a module of the package stands in floors.toml; empty for the package itself."""
    name = module.split(".")[1] if "." in module else ""
    return "" if name == "__main__" else name


@cache
def tree_of(module: str) -> ast.Module:
    """A module's source, parsed."""
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def imported(module: str, *, at_load: bool = False) -> Iterator[str]:
    """Dotted names that a module imports: everywhere in it, or only what loading it imports too."""
    tree = tree_of(module)
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in _at_load(tree) if at_load else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                around = package.rsplit(".", node.level - 1)[0]
                base = f"{around}.{base}".rstrip(".")
            for alias in node.names:
                # `from tuner.declare import problem` imports a module, `from tuner import __version__` a name.
                yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base


def _at_load(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _at_load(child)


def test_every_module_has_one_floor() -> None:
    present = {top(module) for module in MODULES if top(module)}
    assert present - FLOOR.keys() == set(), "add these to a floor in tests/unit/floors.toml"
    assert len(FLOOR) == sum(map(len, TABLE["floors"])), "a name stands on two floors"


def test_the_architecture_tells_what_each_module_is_for() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = [row for row in text.splitlines() if row.startswith("| ") and row.split()[1].isdigit()]
    assert [set(re.findall(r"`(\w+)` ", row.split("|")[2])) for row in rows] == list(map(set, TABLE["floors"]))


@pytest.mark.parametrize("module", [module for module in MODULES if top(module) in FLOOR])
def test_imports_go_downwards(module: str) -> None:
    own = top(module)
    upwards = {
        name
        for name in imported(module)
        if name in MODULES and top(name) not in ("", own) and FLOOR[top(name)] >= FLOOR[own]
    }
    assert upwards == set(), f"{own} is on floor {FLOOR[own]} and imports only from floors below"


def test_the_package_itself_imports_nothing() -> None:
    assert set(imported("tuner", at_load=True)) <= {"tuner.version"}


def test_there_is_no_import_cycle() -> None:
    graph = {
        module: {name for name in imported(module, at_load=True) if name in MODULES and name != module}
        for module in MODULES
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("library", TABLE["reserved"])
def test_heavy_libraries_are_imported_only_where_they_belong(library: str) -> None:
    importers = {module for module in MODULES for name in imported(module) if name.split(".")[0] == library}
    assert {module for module in importers if top(module) not in TABLE["reserved"][library]} == set()


def test_kernels_are_loaded_by_path_and_never_imported() -> None:
    importers = {
        module
        for module in MODULES
        for name in imported(module)
        if name.split(".")[0] in ("kernels", "examples")
    }
    assert importers == set()


def loaded_by(statement: str) -> set[str]:
    """Top-level modules that a fresh Python has loaded after a statement."""
    code = f"import sys\n{statement}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


def test_importing_the_package_loads_no_library() -> None:
    assert loaded_by("import tuner") & {*TABLE["reserved"], "numpy", "click", "rich"} == set()


def test_what_answers_questions_loads_no_heavy_library() -> None:
    assert (
        loaded_by(
            "import tuner.declare.catalogue, tuner.nightly.plan, tuner.results.record, tuner.devices.detect"
        )
        & set(TABLE["reserved"])
        == set()
    )


def test_the_process_that_keeps_the_database_loads_no_device_library() -> None:
    assert loaded_by("import tuner.study.study") & {"cupy", "cupy_backends", "numba", "llvmlite"} == set()
