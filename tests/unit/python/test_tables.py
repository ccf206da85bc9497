"""Records as tables: in Python, as CSV, as Parquet."""

import csv
import io
from pathlib import Path

import pytest
from fixtures.fake_device import LEGAL, database, study, write_device
from pyarrow import parquet

import tuner
from tuner.cli.main import run
from tuner.errors import NothingFound
from tuner.python.tuned import COLUMNS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study of the toy."""
    made = tmp_path_factory.mktemp("tables")
    study(made, write_device(made / "device.json", baseline_s=1e-3))
    return made


def test_records_are_a_table_in_python(folder: Path) -> None:
    table = tuner.records(db=database(folder), operation="toy", role="trial")
    assert len(table) == LEGAL
    assert repr(table).startswith(f"<{LEGAL} rows of ")
    assert list(table.columns) == [*COLUMNS, "dim.n", "config.BLOCK", "config.ITEMS", "config.ORDER"]
    assert {row["dim.n"] for row in table} == {1000}
    frame = table.to_dataframe()
    assert (len(frame), frame["config.BLOCK"].dtype.kind) == (LEGAL, "i")
    assert frame["measured_at"].is_monotonic_increasing
    assert len(tuner.records(db=database(folder), shape=[999])) == 0
    with pytest.raises(NothingFound, match="there is no database"):
        tuner.records(db="sqlite:///nowhere/none.db")


def test_csv_and_parquet_agree(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export = ["records", "export", "--db", database(folder), "--quiet"]
    assert run([*export, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert run([*export, "--format", "parquet"]) == 2
    assert "Parquet goes to a file, got none" in capsys.readouterr().err
    assert run([*export, "--format", "parquet", "-o", str(tmp_path / "all.parquet")]) == 0
    table = parquet.read_table(tmp_path / "all.parquet")
    assert table.column_names == list(rows[0])
    frame = table.to_pandas()
    assert frame["id"].tolist() == [row["id"] for row in rows]
    assert frame["time_s"].tolist() == pytest.approx([float(row["time_s"]) for row in rows])
    assert frame[frame["role"] == "baseline"]["config.BLOCK"].isna().all()
