"""Kernels: what a declaration must hold, and rendering."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_device import BEST, TOY
from hypothesis import given
from hypothesis import strategies as st

from tuner.declare import catalogue
from tuner.declare.catalogue import from_file
from tuner.declare.folders import kernels_folder
from tuner.declare.kernel import Source, measured_text, render
from tuner.declare.launch import Launch
from tuner.declare.problem import Problem
from tuner.declare.space import Config, choice
from tuner.devices.cuda.language import cpp_tokens
from tuner.errors import DeclarationError, InputError, UnknownName

CATALOGUE = from_file(TOY)
BLOCKS, CHUNKS = CATALOGUE.of("toy")


def toy(n: int = 1000) -> Problem:
    return CATALOGUE.operation("toy").problem({"n": n})


def test_a_kernel_is_rendered_with_its_config_in_front_of_its_source() -> None:
    rendered = render(BLOCKS, toy(), Config(BEST))
    assert rendered.text.splitlines()[:6] == [
        "#define REAL float", "#define BLOCK 256", "#define ITEMS 4", "#define ORDER_blocked 0",
        "#define ORDER_striped 1", "#define ORDER ORDER_striped",
    ]  # fmt: skip
    assert rendered.text.endswith(BLOCKS.text)
    assert rendered.launch == Launch(grid=(1,), block=(256,))
    in_numba = render(CHUNKS, toy(), Config({"CHUNK": 64, "FUSED": True}))
    assert (in_numba.text[:25], in_numba.launch) == ("CHUNK = 64\nFUSED = True\n\n"[:25], None)
    larger = render(BLOCKS, toy(10**6), Config(BEST))
    assert (larger.text, larger.hash) == (rendered.text, rendered.hash)
    assert larger.launch == Launch(grid=(977,), block=(256,))


def test_the_source_hash_follows_what_is_compiled_and_not_how_it_is_told(tmp_path: Path) -> None:
    def declared(source: str, declaration: str = "", **changes: Any) -> str:
        (tmp_path / "k.cu").write_text(source)
        where = tmp_path / "k.py"
        where.write_text(declaration)
        return replace(BLOCKS, source=Source(Path("k.cu"), **changes)).declared(where).source_hash

    plain = declared("int a = 1;")
    assert declared("// one\nint a  =\n 1; /* two */") == plain
    assert declared("int a = 1;", "another declaration") == plain
    (tmp_path / "shared.cu").write_text("// shared\nint b;")
    assert declared("int a = 1;", includes=(Path("shared.cu"),)) == declared("int b;\nint a = 1;")
    changed = declared("int a = 2;"), declared("int a = 1;", entry="b"), declared("int a = 1;", options=("-G",))
    assert len({plain, *changed}) == 4


def test_the_launch_hash_follows_the_launch_and_the_constants() -> None:
    config = Config(BEST)
    plain = BLOCKS.launch_hash(toy(), config)
    wider = replace(BLOCKS, launch=lambda p, c: Launch(grid=(1,), block=(c.BLOCK, 2)))
    problem = toy()
    constant = replace(problem.operation, constants=lambda p, target: {"SCALE": 3})
    moved = BLOCKS.launch_hash(replace(problem, operation=constant), config)
    assert len({plain, wider.launch_hash(toy(), config), moved}) == 3
    assert BLOCKS.launch is not None
    spelt_out = replace(BLOCKS.launch(toy(), config), shared_bytes=0, workspace=None)
    assert replace(BLOCKS, launch=lambda p, c: spelt_out).launch_hash(toy(), config) == plain


@pytest.mark.parametrize(("change", "message"), [
    ({"target": "gpu"}, "target of kernel 'blocks' is one of cpu, cublaslt, cuda.*got 'gpu'"),
    ({"launch": None}, r"needs a launch rule .* \(cuda\) has none"),
    ({"target": "cpu"}, r"a cpu kernel has none; kernel 'blocks' \(cpu\) has one"),
    ({"parameters": (choice("A", 1), choice("A", 2))}, "have distinct names"),
    ({"starts": ({"BLOCK": 100},)}, "got BLOCK=100"),
    ({"starts": ({"WIDTH": 1},)}, "got WIDTH=1"),
    ({"starts": ({"BLOCK": 32},)}, "names all of"),
    ({"threads": "BLOCK"}, "number of CPU threads; kernel 'blocks' is for cuda, leave it out"),
    ({"target": "cpu", "launch": None, "threads": "CREW"}, "is one of its parameters .*, got 'CREW'"),
])  # fmt: skip
def test_a_wrong_declaration_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        replace(BLOCKS, **change)


def test_the_first_start_is_the_default_and_a_path_alone_a_source(tmp_path: Path) -> None:
    default = dict(BLOCKS.starts[0])
    kernel = replace(BLOCKS, starts=(default, BEST), source=Path("gone.cu"))
    assert [dict(config) for config in kernel.first_configs()] == [default, BEST]
    assert kernel.default_config() == default
    assert replace(BLOCKS, starts=()).default_config() is None
    with pytest.raises(DeclarationError, match=r"source of kernel 'blocks' cannot be read: .*gone\.cu"):
        _ = kernel.declared(tmp_path / "k.py").text


# --- What of a source reaches the compiler

SOURCE = """
#define TILE 16  // elements
/* a comment */ extern "C" __global__ void f(float* x) {
    const char* text = "// not a comment";
    if (x[0] >= 1'000 && '"' != 'a') x[threadIdx.x] += TILE; // add
}
"""


def test_comments_and_layout_do_not_count() -> None:
    other = """#define TILE \\
    16
extern "C"   __global__ void
f ( float * x )
{ const char *text="// not a comment"; /* over
two lines */ if(x[0]>=1'000&&'"'!='a')x[threadIdx.x]+=TILE;}"""
    assert cpp_tokens(SOURCE) == cpp_tokens(other)


CHANGES = {
    "16  //": "17  //", "// not a comment": "// another text", "+= TILE": "= TILE", "'a'": "'b'",
    "1'000": "1'001", "#define TILE 16": "#define TILE(x) 16",
}  # fmt: skip


@pytest.mark.parametrize("was", CHANGES)
def test_anything_else_counts(was: str) -> None:
    assert was in SOURCE
    assert cpp_tokens(SOURCE.replace(was, CHANGES[was])) != cpp_tokens(SOURCE)


@pytest.mark.parametrize(
    ("one", "other"), [("a + +b", "a ++b"), ("a< b", "a<<b"), ("#if A\nB", "#if A B"), ("x y", "xy")]
)
def test_tokens_and_directives_stay_apart(one: str, other: str) -> None:
    assert cpp_tokens(one) != cpp_tokens(other)


@given(st.lists(st.sampled_from(["a", "1.5e-3f", "+", "(", "->", '"s t"', "::", ";"])), st.data())
def test_any_white_space_between_tokens_is_the_same(tokens: list[str], data: st.DataObject) -> None:
    gaps = st.sampled_from([" ", "\n", "\t \n", " /* c */ ", " // c\n"])
    one = "".join(token + data.draw(gaps) for token in tokens)
    assert cpp_tokens(one) == cpp_tokens(" ".join(tokens))


def test_docstrings_and_comments_of_a_cpu_kernel_do_not_count() -> None:
    plain = "def f(x):\n    return x + 1\n"
    told = '"""A module."""\n\ndef f(x):\n    """Adds."""\n    # one\n    return (x\n            + 1)\n'
    assert measured_text(told, "cpu") == measured_text(plain, "cpu")
    assert measured_text(plain.replace("1", "2"), "cpu") != measured_text(plain, "cpu")
    assert measured_text("def f(:", "cpu") == "def f(:"
    # Nor do docstrings of files after the first.
    first, second = '"""Vectors."""\n\ndef load(p):\n    return p\n', "def f(p):\n    return load(p)\n"
    several = f'{first}\n\n"""Reads one element."""\n\n{second}'
    assert measured_text(several, "cpu") == measured_text(f"{first}\n\n{second}", "cpu")


# --- catalogues ----------------------------------------


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
