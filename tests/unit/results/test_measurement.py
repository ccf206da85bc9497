"""Measurements: what a failure's reason says in a line."""

import pytest

from tuner.results.measurement import headline

NUMBA = """TypingError: Failed in nopython mode pipeline (step: nopython frontend)
Unknown attribute 'foo' of type float32

File "kernel.py", line 10:
"""


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("MemoryError: ", "MemoryError"),
        ("\n error: identifier undefined\nmore", "error: identifier undefined"),
        (NUMBA, "TypingError: Unknown attribute 'foo' of type float32"),
        (NUMBA.splitlines()[0], NUMBA.splitlines()[0]),
    ],
)
def test_the_line_of_a_reason_that_says_most(reason: str, said: str) -> None:
    assert headline(reason) == said
