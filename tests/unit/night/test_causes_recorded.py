"""Nights on H200s in which something real was swapped: the judge, which sees no label, names what it was."""

from __future__ import annotations

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
    swaps = [each for each in rows if each["counts"] and each["label"] != "none"]
    assert {each["label"] for each in swaps} == {"config", "compiler", "vendor", "neighbour"}
    assert len(swaps) >= 14
    assert Counter(each["label"] for each in swaps if not each["right"]) == wrong


def test_power_where_the_library_alone_moved_is_no_sign_of_a_neighbour(tmp_path: Path) -> None:
    rows = judged(RECORDED / "second", tmp_path / "rows.json")
    vendors = [each["causes"] for each in rows if each["label"] == "vendor" and each["counts"]]
    assert vendors
    assert all(set(causes) == {"vendor"} for causes in vendors)
