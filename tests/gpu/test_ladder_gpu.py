"""Every step of every ladder on a real GPU, with its declared config, at shapes that no tile divides."""

import json
from pathlib import Path

import pytest

from tuner.cli.main import run

CASES = [
    ("gemm", "1000 777 333", "float32", "nn"), ("gemm", "512 512 512", "float64", "tt"),
    ("gemv", "1000 20001", "float32", "t"), ("gemv", "2048 40000", "float32", "n"),
    ("gemv", "2048 4096", "float64", "n"), ("transpose", "1000 1300", "float32", ""),
    ("transpose", "2048 1024", "int32", ""), ("transpose", "1001 999", "float64", ""),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "dims", "dtype", "layout"), CASES)
def test_each_step_is_measured(
    operation: str, dims: str, dtype: str, layout: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--dtype", dtype, "--classic", "--end-to-end", "--json", "--quiet", "--device", "cuda:0"]
    assert run(["ladder", operation, *dims.split(), *options, *(["--layout", layout] if layout else [])]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["outcome"] for row in rows] == ["MEASURED"] * len(rows)
    assert all(row["of_library"] > 0 and row["of_limit"] > 0 for row in rows)
    assert all(row["end_to_end"]["total"] > row["time_s"] for row in rows)


def test_padded_rows_and_compensated_sums(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = Path(__file__).resolve().parents[2] / "configs" / "ladder-gemm-accuracy.toml"
    assert run(["ladder", str(plan), "--json", "--quiet", "--device", "cuda:0"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["outcome"] for row in rows] == ["MEASURED"] * len(rows)
    plain, *kahan = [row["error"]["mean_rel"] for row in rows]
    assert all(plain > 5 * each for each in kahan)
