"""An answer is a short walk: how many functions of the package it calls, and in how many files."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
#: Calls and files that an answer may take.
LIMITS = {"exact": (25, 5), "predicted": (300, 30)}


@pytest.fixture(scope="module")
def walks() -> dict[str, tuple[int, int]]:
    """Calls and files of each kind of answer, as the script prints them."""
    done = subprocess.run(
        [sys.executable, "scripts/walks"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    printed = re.findall(r"^(\w+) +(\d+) calls in +(\d+) files$", done.stdout, re.MULTILINE)
    return {name: (int(calls), int(files)) for name, calls, files in printed}


@pytest.mark.parametrize("answer", LIMITS)
def test_an_answer_walks_no_further_than_this(walks: dict[str, tuple[int, int]], answer: str) -> None:
    calls, files = walks[answer]
    assert calls <= LIMITS[answer][0], "scripts/walks -v names the functions"
    assert files <= LIMITS[answer][1]
