"""Whether two machines have the same code, kernels and files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tuner.fleet.orders import Identity, difference, identity_of

OURS = Identity("1.0", "aa", "bb", (("/p/own.py", "cc"),))


def test_the_same_is_no_difference() -> None:
    assert difference(OURS, OURS) == ""
    assert difference(identity_of(), identity_of()) == ""
    assert difference(OURS, replace(OURS, files=(*OURS.files, ("/p/more.py", "dd")))) == ""


@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        (replace(OURS, version="1.1"), "it has tile-tuner 1.1, the coordinator 1.0; install the same version"),
        (replace(OURS, code="xx"), "its code of tile-tuner is another, of the same version"),
        (replace(OURS, kernels="xx"), "its built-in kernels are others"),
        (replace(OURS, files=()), "it has no kernel file /p/own.py; put the same one at the same path"),
        (replace(OURS, files=(("/p/own.py", ""),)), "it has no kernel file /p/own.py"),
        (replace(OURS, files=(("/p/own.py", "xx"),)), "its kernel file /p/own.py, or a source beside it"),
    ],
)
def test_a_difference_is_told_with_its_remedy(theirs: Identity, told: str) -> None:
    assert told in difference(OURS, theirs)


def test_a_files_hash_covers_its_sources_and_those_that_are_shared(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("a = 1\n")
    seen = {identity_of([str(file)]).files}
    for name in ("own.cu", "_shared.py"):
        (tmp_path / name).write_text("// b\n")
        seen.add(identity_of([str(file)]).files)
    assert len(seen) == 3
    (tmp_path / "other.py").write_text("c = 2\n")
    (tmp_path / "own.json").write_text("{}")
    seen.add(identity_of([str(file)]).files)
    assert len(seen) == 3, "what is not read does not count"
