"""Whether two machines have the same code, kernels and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.fleet.orders import difference, identity_of

OURS = {"tile-tuner": "1.0", "built-in kernels": "bb", "kernel file /p/own.py": "cc"}


def test_the_same_is_no_difference() -> None:
    assert difference(OURS, {**OURS, "kernel file /p/more.py": "dd"}) == ""
    assert difference(identity_of(), identity_of()) == ""


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        (
            {"tile-tuner": "1.1"},
            "its tile-tuner must be the coordinator's, 1.0, got 1.1; use the same checkout",
        ),
        ({"built-in kernels": "xx"}, "its built-in kernels must be the coordinator's"),
        ({"kernel file /p/own.py": ""}, "its kernel file /p/own.py must be the coordinator's, cc, got none"),
    ],
)
def test_a_difference_is_told_with_its_remedy(theirs: dict[str, str], message: str) -> None:
    assert message in difference(OURS, OURS | theirs)


def test_a_files_hash_covers_its_sources_and_those_that_are_shared(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    hashes = set()
    for name in ("own.py", "own.cu", "_shared.py", "other.py", "own.json"):
        (tmp_path / name).write_text("// b\n")
        hashes.add(identity_of([str(file)])[f"kernel file {file}"])
    assert len(hashes) == 3, "what is not read does not count"
