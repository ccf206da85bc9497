"""Kernels: what a declaration must hold, and rendering."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_device import BEST, TOY
from hypothesis import given
from hypothesis import strategies as st

from tuner.declare.catalogue import from_file
from tuner.declare.kernel import Source, measured_text, render
from tuner.declare.launch import Launch
from tuner.declare.problem import Problem
from tuner.declare.space import Config, choice
from tuner.devices.cuda.language import cpp_tokens
from tuner.errors import DeclarationError

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
