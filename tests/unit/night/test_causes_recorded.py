"""Nights on H200s in which something real was swapped: the judge, which sees no label, names what it was."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "tests/fixtures/recorded_swaps"


def judged(folder: Path, out: Path) -> list[dict[str, Any]]:
    script = ROOT / "scripts/bench/watch_causes"
    subprocess.run([sys.executable, script, folder, "--json", out], check=True, stdout=subprocess.DEVNULL)
    rows: list[dict[str, Any]] = json.loads(out.read_text())
    return rows


@pytest.mark.parametrize(("recording", "wrong"), [("first", {"neighbour": 1}), ("second", {})])
def test_real_swaps_are_named(recording: str, wrong: dict[str, int], tmp_path: Path) -> None:
    rows = judged(RECORDED / recording, tmp_path / "rows.json")
    swaps = [row for row in rows if row["counts"] and row["label"] != "none"]
    assert {row["label"] for row in swaps} == {"config", "compiler", "vendor", "neighbour"}
    assert len(swaps) >= 14
    assert Counter(row["label"] for row in swaps if not row["right"]) == wrong
