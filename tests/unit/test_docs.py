"""The documentation: its site builds, its samples run, its notebooks run."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy
import pytest
from fixtures.own_kernels import plain_device
from nbclient import NotebookClient

import tuner
from tuner.cli.main import run
from tuner.errors import TunerError

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: Budgets of the pages -> those of the test: one trial, for which a study waits on a busy machine, too, and
#: finals of a second, with caches that are not flushed.
BUDGETS = (
    ('on_miss="measure", seconds=20', 'on_miss="measure", seconds=10'),
    ("seconds=20", 'seconds=10, trials=1, regime="hot"'),
    ("--seconds 20", "--seconds 10 --trials 1 --regime hot"),
)
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "TUNER_CONFIG": os.devnull}


def blocks(page: str, language: str) -> list[str]:
    """The blocks of code of a page in a language, with small budgets."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for theirs, ours in BUDGETS:
        text = text.replace(theirs, ours)
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def script(page: str, without: str = "") -> str:
    """The Python of a page as one script; blocks that begin with the name of a file are written there."""
    parts = []
    for block in blocks(page, "python"):
        file = re.match(r"# (\w+(?:\.numba)?\.py)\n", block)
        if file:
            Path(file[1]).write_text(block, encoding="utf-8")
        elif not (without and block.startswith(without)):
            parts.append(block)
    return "\n".join(parts)


#: Runs pages one after the other, each as a script of its own; libraries are loaded once.
RUNNER = """
import runpy
for page in {pages!r}:
    print("==", page)
    runpy.run_path(page, run_name="__main__")
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The samples of all pages, run without a guard of `__main__` on the CPU and on a fake board.

    Returns:
        The folder that they ran in, and what each page printed.
    """
    here = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        (here / "tuner.toml").write_text(f'device = "{plain_device(here / "device.json")}"\n')
        texts = {
            "own-kernels": script("own-kernels.md"),
            "python": script("python.md"),
            "kernel-tuner-users": script("kernel-tuner-users.md", without="# Kernel Tuner") + "\nprint(best)\n",
        }
        files = {name: here / f"{name}-page.py" for name in texts}
        for name, text in texts.items():
            files[name].write_text(text, encoding="utf-8")
        (here / "all.py").write_text(RUNNER.format(pages=list(map(str, files.values()))))
        done = subprocess.run(
            [sys.executable, "all.py"], capture_output=True, text=True, check=False, env=ENVIRONMENT
        )
        (here / "tuner.toml").unlink()
    assert done.returncode == 0, done.stderr[-3000:]
    printed = [part.partition("\n")[2] for part in done.stdout.split("== ")[1:]]
    return here, dict(zip(texts, printed, strict=True))


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", tmp_path / "trees",
    ]  # fmt: skip
    done = subprocess.run([*command, DOCS, tmp_path / "site"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    api = (tmp_path / "site" / "api.html").read_text(encoding="utf-8")
    for name in ("tune", "kernel", "cuda_kernel", "show", "records", "matmul", "best"):
        assert re.search(rf'id="tuner\.[\w.]*{name}"', api), name
    assert "Wall time; 60 unless" in api
    assert not list((tmp_path / "site").glob("README*"))


def test_every_sample_of_the_pages_runs(
    pages: tuple[Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, printed = pages
    assert "smooth 10000 x 3 float32" in printed["own-kernels"]
    assert "| problem |" in printed["python"]
    assert {path.name for path in folder.iterdir()} >= {"study", "out", "studies.db"}
    is_as_the_page_compares_it(printed["kernel-tuner-users"])
    monkeypatch.chdir(folder)
    (commands,) = blocks("own-kernels.md", "bash")
    for line in commands.splitlines():
        assert run(shlex.split(line)[1:]) == 0, capsys.readouterr().err
    assert "Champion of axpy 100000 float32" in capsys.readouterr().out
    assert list((folder / "out").glob("axpy*.py"))


def is_as_the_page_compares_it(printed: str) -> None:
    """A kernel for Kernel Tuner and for us: what ours printed, and the lines that the page counts."""
    theirs, ours = (
        next(each for each in blocks("kernel-tuner-users.md", "python") if each.startswith(f"# {name}\n"))
        for name in ("Kernel Tuner", "tile-tuner")
    )
    text = (DOCS / "kernel-tuner-users.md").read_text(encoding="utf-8")
    for name, code in (("Kernel Tuner", theirs), ("tile-tuner", ours)):
        lines = [line for line in code.splitlines() if line.strip() and not line.startswith("#")]
        assert f"{name}, {len(lines)} lines:" in text
    compile(theirs, "theirs", "exec")
    assert "block_size_x" in printed


@pytest.mark.parametrize("page", ["own-kernels.md", "kernel-tuner-users.md"])
def test_cuda_samples_compile(page: str) -> None:
    pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="NVRTC comes with the extras cuda12 and cuda13")
    from tuner.devices.cuda.nvrtc import compile_cubin

    (source,) = re.findall(r'SOURCE = """\n(.*?)"""', (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    macros = {"BLOCK": 64, "ITEMS": 2, "block_size_x": 16, "block_size_y": 16, "TILE_K": 8}
    lines = [f"#define {name} {value}" for name, value in macros.items()]
    cubin, _ = compile_cubin("\n".join([*lines, source]), "sm_90a", ())
    assert cubin.startswith(b"\x7fELF")


def test_the_messages_of_mistakes_are_those_of_the_code() -> None:
    table = (DOCS / "own-kernels.md").read_text(encoding="utf-8").partition("## Common mistakes")[2]
    told = [found[1] for found in re.finditer(r"^\| [^|]+ \| `([^`]+)` \|$", table, re.MULTILINE)]
    assert len(told) == 9
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tuner").rglob("*.py"))
    seen = re.sub(r'"\s*\n\s*f?"', "", code)
    missing = [message for message in told if message not in seen and message != MISCALLED]
    assert missing == []
    with pytest.raises(TunerError, match=re.escape(MISCALLED)):
        tuner.tune(smooth, arguments=[numpy.ones(9), numpy.ones(9), 9, 3, 64], params={"BLOCK": [64]})


MISCALLED = "takes 4 arguments (signal, smoothed, n, radius), got 5"


def smooth(signal: object, smoothed: object, n: int, radius: int, BLOCK: int = 64) -> object:
    """As in the page."""
    return BLOCK


def test_the_notebooks_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other in one kernel, which is emptied in between."""
    for variable, value in ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)
    first, second = (
        nbformat.read(ROOT / "examples" / f"{name}.ipynb", as_version=4)
        for name in ("tune-and-export", "own-kernel")
    )
    every = [*first.cells, *second.cells]
    assert all(not cell.outputs for cell in every if cell.cell_type == "code"), "keep them without outputs"
    first.cells += [nbformat.v4.new_code_cell("%reset -f"), *second.cells]
    for cell in first.cells:
        cell.source = cell.source.replace(
            'BUDGET = {"seconds": 30}', 'BUDGET = {"seconds": 10, "trials": 1, "regime": "hot"}'
        )
    NotebookClient(
        first, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(here)}}
    ).execute()
    printed = "".join(
        each.get("text", "")
        for cell in first.cells
        for each in cell.get("outputs", ())
        if each.get("name") == "stdout"
    )
    assert printed.count("champion: ") == 2
    assert printed.count("1 measured") == 2
