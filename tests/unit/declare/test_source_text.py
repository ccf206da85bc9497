"""What of a source reaches the compiler."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.declare.kernel import measured_text
from tuner.devices.cuda.language import cpp_tokens

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
