"""What the repository promises: locks, scripts, and a wheel that is complete."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import tuner
from tuner.declare import catalogue

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCKS = sorted(path.stem for path in (ROOT / "requirements").glob("*.lock"))


def blocks(lock: str) -> list[str]:
    """The packages of a lock file, each with the lines that follow it."""
    text = (ROOT / "requirements" / f"{lock}.lock").read_text(encoding="utf-8")
    return [block for block in re.split(r"^(?=\w)", text, flags=re.MULTILINE) if not block.startswith("#")]


def pins(lock: str) -> dict[str, str]:
    """Package -> version of a lock file."""
    return dict(block.split()[0].split("==") for block in blocks(lock))


# --- lock files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lock", LOCKS)
def test_locks_pin_and_hash_every_package_and_name_no_host(lock: str) -> None:
    assert blocks(lock)
    for block in blocks(lock):
        assert re.match(r"[a-z0-9.-]+==[0-9][0-9a-z.]* ", block), block.splitlines()[0]
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", block), block.splitlines()[0]
    text = (ROOT / "requirements" / f"{lock}.lock").read_text(encoding="utf-8")
    assert re.findall(r"://|--(?:extra-)?index-url|--find-links|@ ", text) == []


def test_there_is_a_lock_for_the_runtime_and_for_each_extra() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert set(LOCKS) == {"runtime", *extras}


def wanted(lock: str) -> list[Requirement]:
    """What pyproject.toml asks for under the name of a lock file."""
    project = PROJECT["project"]
    build = [*PROJECT["dependency-groups"]["build"], *PROJECT["build-system"]["requires"]]
    names = [*project["dependencies"], *build] if lock == "runtime" else project["optional-dependencies"][lock]
    return [Requirement(name) for name in names]


@pytest.mark.parametrize("lock", LOCKS)
def test_locks_hold_what_the_project_asks_for(lock: str) -> None:
    locked = pins("runtime") | pins(lock)
    missing = [
        str(requirement)
        for requirement in wanted(lock)
        if not requirement.specifier.contains(locked.get(canonicalize_name(requirement.name), "0"))
    ]
    assert missing == [], "run scripts/lock"


@pytest.mark.parametrize("folder", ["tuner", "kernels", "examples"])
def test_every_library_that_is_imported_is_asked_for(folder: str) -> None:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / folder).rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) if not node.level}
    libraries = {name.split(".")[0] for name in names} - {*sys.stdlib_module_names, "", "tuner"}
    locks = ("runtime", "cuda13", "model", "tables", "fleet", "serve", "triton")
    asked = {canonicalize_name(each.name) for lock in locks for each in wanted(lock)}
    # numba carries llvmlite, distributed dask, pydantic and CuPy their own parts; a name may differ from its
    # distribution's.
    # PyTorch is never installed: who imports `tuner.torch` has the build for their machine.
    asked |= {"llvmlite", "dask", "pydantic-core", "cupy", "cupy-backends", "torch"}
    distributions = metadata.packages_distributions()
    unasked = {
        name
        for name in libraries
        if asked.isdisjoint(map(canonicalize_name, [name, *distributions.get(name, [])]))
    }
    assert unasked == set(), "add these to the dependencies in pyproject.toml and run scripts/lock"


# --- scripts ------------------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what set-up needs, in a folder with a space in its name, and a .venv that is not real."""
    root = tmp_path / "a checkout"
    for name in ("scripts", "requirements"):
        shutil.copytree(ROOT / name, root / name)
    shutil.copy(ROOT / "pyproject.toml", root)
    for name in ("python", "tuner"):
        program(root / ".venv" / "bin" / name, f'echo "{name} got $# arguments: $*"')
    return root


def program(path: Path, text: str) -> None:
    """Writes a shell script that can be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


def bash(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs shell code in an environment of the given variables and no others that matter here."""
    kept = {name: value for name, value in os.environ.items() if name != "TUNER_CUDA"}
    bash_path = shutil.which("bash") or "bash"
    return subprocess.run(
        [bash_path, "-c", code], capture_output=True, text=True, check=False, env=kept | environment
    )


def stamp(checkout: Path, group: str) -> None:
    """Marks the checkout's .venv as installed."""
    done = bash(f"source '{checkout}/scripts/environment.sh'; fingerprint {group}")
    (checkout / ".venv" / f"installed-{group}").write_text(done.stdout)


def installed_for(checkout: Path, tmp_path: Path, words: str, **environment: str) -> tuple[str, str]:
    """Runs scripts/tuner with a Python that only says how it was called; the output, and what it installs."""
    # Asked for its fitness it reads a program from stdin ("-"), else it is told which file to run.
    program(
        tmp_path / "bin" / "python3.13", 'if [ "$1" = - ]; then echo nothing; else echo "called $*" >&2; fi'
    )
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    done = bash(f"'{checkout}/scripts/tuner' {words}", PATH=path, **environment)
    assert done.returncode == 0
    _, _, group = done.stderr.partition(f"called {checkout}/scripts/install.py ")
    return done.stdout, group.partition(" ")[0]


def installer_called(checkout: Path, tmp_path: Path, **environment: str) -> bool:
    """Whether scripts/tuner installs what every command needs."""
    out, group = installed_for(checkout, tmp_path, "--help", **environment)
    assert (out, group in ("", "run")) == ("tuner got 1 arguments: --help\n", True)
    return bool(group)


@pytest.mark.parametrize(("words", "group"), [
    ("best gemm 8 8 8", "run"), ("serve", "serve"), ("serve --cluster slurm", "serve+fleet"),
    ("worker tcp://head:8786", "fleet"), ("nightly plan.toml --cluster=slurm", "fleet"),
    ("model fit gemm", "model"), ("nightly /dev/stdin <<< '[[surveys]]'", "model"),
    ("records export -o all.parquet", "tables"), ("best gemm 8 8 8 --db postgresql://db/records", "postgres"),
])  # fmt: skip
def test_a_command_gets_what_it_needs(checkout: Path, tmp_path: Path, words: str, group: str) -> None:
    assert installed_for(checkout, tmp_path, words)[1] == group


def test_nothing_is_installed_where_all_is_there(checkout: Path, tmp_path: Path) -> None:
    stamp(checkout, "run")
    assert not installer_called(checkout, tmp_path)


@pytest.mark.parametrize("change", ["lock", "pyproject.toml", "TUNER_CUDA", "stamp", "cut short", "moved"])
def test_set_up_runs_again_after_a_change(checkout: Path, tmp_path: Path, change: str) -> None:
    stamp(checkout, "run")
    environment = {}
    if change == "lock":
        (checkout / "requirements" / "runtime.lock").write_text("numpy==1.0\n")
    elif change == "pyproject.toml":
        (checkout / change).write_text("[project]\n")
    elif change == "TUNER_CUDA":
        environment[change] = "none"
    elif change == "stamp":
        (checkout / ".venv" / "installed-run").write_text("")
    elif change == "cut short":
        (checkout / ".venv" / "installing").touch()
    else:
        checkout = checkout.rename(tmp_path / "elsewhere")
    assert installer_called(checkout, tmp_path, **environment)


def test_scripts_find_their_checkout_through_a_link(checkout: Path, tmp_path: Path) -> None:
    stamp(checkout, "run")
    (tmp_path / "link").symlink_to(checkout / "scripts" / "tuner")
    done = bash(f"cd / && '{tmp_path}/link' best 'a b'")
    assert done.stdout == "tuner got 2 arguments: best a b\n"
    done = bash(f"cd '{checkout}/scripts' && bash tuner best")
    assert done.stdout == "tuner got 1 arguments: best\n"


@pytest.mark.parametrize(("says", "message"), [
    (
        "3.11 (it is 3.9)",
        r"Python 3\.11 or newer .* is needed, found .*python3 without 3\.11 \(it is 3\.9\)",
    ),
    ("module ensurepip", r"found .*python3 without module ensurepip;\ninstall one .*python3-venv"),
])  # fmt: skip
def test_a_python_that_will_not_do_is_told(checkout: Path, tmp_path: Path, says: str, message: str) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "cat", "sha256sum", "readlink", "env"):
        (tools / name).symlink_to(shutil.which(name) or name)
    program(tools / "python3", f"echo '{says}'")
    done = bash(f"'{checkout}/scripts/tuner' best", PATH=str(tools))
    assert (done.returncode, done.stdout) == (3, "")
    assert re.search(message, done.stderr)


def test_set_up_refuses_an_unknown_cuda_version(checkout: Path) -> None:
    command = [sys.executable, checkout / "scripts" / "install.py", "run", "fingerprint"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"TUNER_CUDA": "11"}
    )
    assert done.returncode == 3
    assert done.stderr == "tile-tuner: TUNER_CUDA is auto, none, 12 or 13, got '11'; choose one of them\n"
    assert not (checkout / ".venv" / "installed-run").exists()


def test_an_installation_tells_what_it_does_and_not_pips_lines(checkout: Path) -> None:
    talkative = "for word; do [[ $word != --quiet ]] || exit 0; done; [[ $* == *--version ]] || seq 130"
    program(checkout / ".venv" / "bin" / "python", talkative)
    command = [sys.executable, checkout / "scripts" / "install.py", "run", "fingerprint"]
    environment = os.environ | {"TUNER_CUDA": "none"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    told, ready = done.stderr.splitlines()
    assert told.startswith("tile-tuner: installing into .venv (requirements/: runtime), in silence")
    assert ready.startswith("tile-tuner: ready after ")


DRIVER = """
#include <stdlib.h>
int cuInit(unsigned flags) { return getenv("CUDA_VISIBLE_DEVICES") ? 100 : %d; }
int cuDriverGetVersion(int *version) { *version = %d; return 0; }
"""


@pytest.mark.parametrize(("status", "version", "asked", "group"), [
    (0, 13010, "auto", "cuda13"),
    (0, 12040, "auto", "cuda12"),
    (0, 14000, "auto", "cuda13"),
    (0, 11080, "auto", ""),
    (100, 13000, "auto", ""),  # a driver and no GPU
    (999, 13000, "auto", "cuda13"),  # a GPU that is unwell needs its packages all the same
    (0, 13000, "none", ""),
    (100, 13000, "12", "cuda12"),
])  # fmt: skip
def test_gpu_packages_fit_the_driver(tmp_path: Path, status: int, version: int, asked: str, group: str) -> None:
    (tmp_path / "driver.c").write_text(DRIVER % (status, version))
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "driver.c"], check=True)
    environment = {"LD_LIBRARY_PATH": str(tmp_path), "TUNER_CUDA": asked, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", "import install; print(install.gpu_group())"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT / "scripts",
        env=os.environ | environment,
    )
    assert done.stdout.strip() == group
    assert bool(done.stderr) == (version < 12000)


# --- the wheel ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the checkout, without network."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel"]
    subprocess.run(
        [*pip, "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, ROOT],
        check=True,
        capture_output=True,
    )
    return next(folder.glob("*.whl"))


def test_the_wheel_carries_kernels_plans_and_types(wheel: Path) -> None:
    carried = set(zipfile.ZipFile(wheel).namelist())
    for folder, inside in (("tuner", "tuner"), ("kernels", "tuner/kernels"), ("configs", "tuner/configs")):
        there = {
            f"{inside}/{path.relative_to(ROOT / folder)}"
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert there
        assert there - carried == set()
    assert "tuner/py.typed" in carried
    assert [
        name
        for name in carried
        if name.split("/")[0] not in ("tuner", wheel.name.split("-py3")[0] + ".dist-info")
    ] == []
    assert [name for name in carried if "__pycache__" in name] == []


def test_an_installed_wheel_finds_its_kernels_and_plans(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = """
from pathlib import Path
import tuner
from tuner.declare import catalogue
from tuner.declare.folders import kernels_folder
from tuner.report.ladder_plan import lessons, read_ladder_plan
from tuner.night.plan import read_plan
from tuner.store.published import entries, tuned_folder
inside = Path(tuner.__file__).parent
found = catalogue.builtin()
assert kernels_folder() == inside / "kernels", kernels_folder()
assert all(kernel.text and kernel.source.file.is_relative_to(inside) for kernel in found.kernels)
ladders = set((inside / "configs").glob("ladder-*.toml"))
nights = set((inside / "configs").glob("*.toml")) - ladders - {inside / "configs" / "lessons.toml"}
assert all(read_plan(path).items for path in nights)
assert ladders and all(read_ladder_plan(path, found).sections for path in ladders)
assert lessons()
assert tuned_folder() == inside / "configs" / "tuned"
assert bool(entries()) == any(tuned_folder().glob("*/*.json"))
print(inside, len(found.kernels))
"""
    # -P: the checkout in the current folder is not to be found first.
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True, text=True, check=True, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
    )  # fmt: skip
    folder, count = done.stdout.rsplit(" ", 1)
    assert folder == str(tmp_path / "site" / "tuner")
    assert int(count) == len(catalogue.builtin().kernels)


def test_the_wheel_names_version_command_and_licence(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    info = f"tile_tuner-{tuner.__version__}.dist-info"
    assert "tuner = tuner.cli:main" in archive.read(f"{info}/entry_points.txt").decode()
    metadata = archive.read(f"{info}/METADATA").decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert {"cuda12", "cuda13", "dev"} <= set(re.findall(r"Provides-Extra: (\w+)", metadata))
