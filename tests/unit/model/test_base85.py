"""Text in base 85, as the standard library writes it."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.model.base85 import read, written


@given(st.binary(max_size=300))
def test_what_was_written_is_read_as_the_standard_library_reads_it(data: bytes) -> None:
    text = written(data)
    assert read(text) == base64.b85decode(text) == data


@given(st.text(st.characters(max_codepoint=127), max_size=12))
def test_what_the_standard_library_refuses_is_refused(text: str) -> None:
    try:
        expected = base64.b85decode(text)
    except ValueError:
        with pytest.raises(ValueError, match="other characters, or groups beyond four bytes"):
            read(text)
    else:
        assert read(text) == expected


def test_letters_beyond_ascii_are_refused() -> None:
    with pytest.raises(ValueError, match="ascii"):
        read("ünter")
