"""scripts/bench/cpu_results: which rows it measures, in which order, and what it takes as done."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tuner.declare.catalogue import builtin
from tuner.devices.detect import cpu_info

SCRIPT = Path(__file__).parents[2] / "scripts/bench/cpu_results"


def listed(folder: Path) -> dict[str, str]:
    """Row -> whether it is done or left, in their order."""
    command = [sys.executable, str(SCRIPT), "--list", "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {row.strip(): word for word, row in (line.split(maxsplit=1) for line in done.stdout.splitlines())}


def test_rows_come_by_weight_and_one_that_another_source_was_measured_for_is_left(tmp_path: Path) -> None:
    (packed,) = [each for each in builtin().of("gemm", "cpu") if each.name == "packed"]
    first, *others = listed(tmp_path)
    cores = cpu_info().cores
    assert first == f"gemm 512x512x512 float32 nn {cores} cores"
    operations = [row.split()[0] for row in (first, *others)]
    assert operations == sorted(operations, key=["gemm", "transpose", "gemv"].index)
    champion = {"kernel": "packed", "config": {}}
    rows = {
        first: {"champion": champion, "source_hash": packed.source_hash},
        others[0]: {"champion": champion, "source_hash": "of another source"},
        others[1]: {"champion": champion},
        "gemm 3x3x3 float32 nn 1 cores": {"champion": champion, "source_hash": packed.source_hash},
    }
    name = re.sub(r"[^a-z0-9]+", "-", cpu_info().name.lower()).strip("-")
    (tmp_path / f"cpu-{name}.json").write_text(json.dumps({"rows": rows}))
    now = listed(tmp_path)
    assert list(now) == [first, *others]
    assert [row for row, word in now.items() if word == "done"] == [first]
