"""Built-in kernels and a user's own file, found the same way."""

from pathlib import Path

import pytest
from fixtures.fake_device import TOY

from tuner.declare import catalogue
from tuner.declare.folders import kernels_folder
from tuner.errors import InputError, UnknownName

ONLY_KERNEL = """
from pathlib import Path
from tuner.declare.kernel import Kernel, Source
MINE = Kernel(operation={operation!r}, name="mine", target="cpu", source=Source(Path("mine.numba.py")))
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.py"
    path.write_text(text)
    (folder / "mine.numba.py").write_text("def gemm(a, b, c, m, n, k): pass\n")
    return path


def test_a_file_declares_its_operation_and_kernels_or_joins_a_built_in_one(tmp_path: Path) -> None:
    found = catalogue.from_file(TOY)
    assert [(list(found.operations), kernel.name) for kernel in found.of("toy", "cpu")] == [(["toy"], "chunks")]
    assert found.operations["toy"].origin == TOY.resolve()
    *builtin, mine = catalogue.from_file(written(tmp_path, ONLY_KERNEL.format(operation="gemm"))).of("gemm")
    assert len(builtin) == len(catalogue.builtin().of("gemm"))
    assert (mine.name, mine.source.file) == ("mine", tmp_path / "mine.numba.py")


def test_dtypes_with_wider_sums_are_for_kernels_that_name_them_alone(tmp_path: Path) -> None:
    found = catalogue.from_file(written(tmp_path, ONLY_KERNEL.format(operation="gemm")))
    gemm = found.operation("gemm")
    (mine,) = found.of("gemm", "cpu", ("mine",))
    assert catalogue.computed_dtypes(mine, gemm) == ("float32", "float64")
    assert mine not in found.of("gemm", "cpu", dtype="bfloat16")
    assert mine in found.of("gemm", "cpu", dtype="float64")
    problem = gemm.problem({"m": 8, "n": 8, "k": 8}, "bfloat16")
    assert not mine.constraints[0].rule(problem, None, None), "no config of it is legal, whoever asks"
    transpose = found.of("transpose", "cuda")[0]
    assert all("elements are" not in each.sentence for each in transpose.constraints)


WITH_SIBLING = """
from pathlib import Path
from tuner.declare.kernel import Kernel, Source
from ._shared import NAME
MINE = Kernel(operation="gemm", name=NAME, target="cpu", source=Source(Path("mine.numba.py")))
"""


def test_a_declaration_imports_the_file_beside_it_as_it_is_now(tmp_path: Path) -> None:
    # As above, and an edit of what the sibling itself imports; a folder has siblings of its own.
    for folder, name in (("one", "mine"), ("two", "mini"), ("one", "mean")):
        (tmp_path / folder).mkdir(exist_ok=True)
        path = written(tmp_path / folder, WITH_SIBLING)
        (path.parent / "_shared.py").write_text("from ._deeper import NAME\n")
        (path.parent / "_deeper.py").write_text(f"NAME = {name!r}\n")
        assert catalogue.from_file(path).of("gemm")[-1].name == name
    assert not list(tmp_path.rglob("__pycache__")), "nothing is cached beside declarations"


def test_unknown_names_are_told_with_the_nearest() -> None:
    found = catalogue.builtin()
    assert all(
        kernel.source.file.is_relative_to(kernels_folder() / kernel.operation) for kernel in found.kernels
    )
    with pytest.raises(UnknownName, match="unknown operation 'gemmm'; did you mean gemm"):
        found.operation("gemmm")
    with pytest.raises(UnknownName, match="cuda kernel of gemm 'register_tilde'; did you mean register_tiled"):
        found.of("gemm", "cuda", ("register_tilde",))


TOYS = TOY.read_text()
MISSPELT = TOYS.replace('operation="toy", name="chunks"', 'operation="tiy", name="chunks"')
TWO = f"{TOYS}\nfrom dataclasses import replace\nOTHER = replace(OPERATION, name='other')\n"


@pytest.mark.parametrize(("text", "message"), [
    (MISSPELT, "unknown operation of kernel 'chunks' 'tiy'; did you mean toy"),
    (ONLY_KERNEL.format(operation="gemmm"), "'gemmm'; did you mean gemm"),
    (TWO, "declares 2 operations; one file declares one"),
    ("def broken(:\n", r"mine\.py cannot be imported: SyntaxError"),
    ("raise SystemExit(5)\n", "cannot be imported: SystemExit: 5"),
    ("X = 1\n", "declares no Kernel; it needs a module-level one"),
    (WITH_SIBLING, r"mine\.py cannot be imported: .*No module named .*_shared"),
])  # fmt: skip
def test_a_file_that_cannot_be_used_is_told(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        catalogue.from_file(written(tmp_path, text))
    with pytest.raises(InputError, match=r"a kernel file must exist, found none at .*gone\.py"):
        catalogue.from_file(tmp_path / "gone.py")
