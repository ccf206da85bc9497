"""Whatever is damaged, no command ends in a traceback, and all that either copy holds is rescued."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fixtures import damage
from fixtures.records import BOARD, CPU, record, square

from tuner.cli.main import run
from tuner.store import Store, health
from tuner.store.ledger import ledger_file, packed_in

#: Damages tried here; `scripts/bench/damages` tries any number.
SEEDS = 60


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "studies.db"
    damage.fill(path)
    return path


@pytest.fixture(scope="module")
def whole(made: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """All that it holds."""
    return damage.content(copied(made, tmp_path_factory.mktemp("whole")))


def copied(made: Path, folder: Path) -> Path:
    for file in made.parent.glob("studies.db*"):
        shutil.copy(file, folder)
    return folder / made.name


@pytest.mark.parametrize("seed", range(SEEDS))
def test_all_that_either_copy_holds_is_rescued(made: Path, whole: set[str], tmp_path: Path, seed: int) -> None:
    path = copied(made, tmp_path)
    places = damage.hurt(path, seed)
    held = damage.held_by_database(path) | damage.held_by_copy(path)
    assert held <= whole
    into = tmp_path / "rescued.db"
    code = run(["records", "check", "--rescue", str(into), "--db", f"sqlite:///{path}"])
    assert code in (0, 3)
    got = damage.content(into)
    assert held <= got <= whole
    if places in (("database",), ("copy",)):
        assert got == whole, "one of the copies is whole"


@pytest.mark.parametrize("seed", range(0, SEEDS, 3))
def test_no_damage_makes_a_traceback(made: Path, tmp_path: Path, seed: int) -> None:
    path = copied(made, tmp_path)
    damage.hurt(path, seed)
    for command in (
        ["records", "stats"],
        ["records", "list"],
        ["records", "export", "-", "--quiet"],
        ["best", "gemm", "64", "64", "64", "--device", "NVIDIA H200"],
        ["records", "upgrade"],
    ):
        assert run([*command, "--db", f"sqlite:///{path}"]) in (0, 1, 3), command


def test_a_row_that_is_shared_takes_no_record_along(tmp_path: Path) -> None:
    """The database alone, with the one row gone that describes the device of all records."""
    path = tmp_path / "studies.db"
    with Store.open(f"sqlite:///{path}") as store:
        store.add([record(square(n), device=(BOARD, CPU)[n % 2]) for n in range(1, 41)])
    ledger_file(path).unlink()
    before = damage.content(path)
    data = bytearray(path.read_bytes())
    for text in (b'"name":"NVIDIA H200"', b'"name":"AMD EPYC'):
        assert data.count(text) == 1
        data[data.index(text) + 9] ^= 1
    path.write_bytes(data)
    assert health.check(f"sqlite:///{path}").damaged == 40
    health.rescue(f"sqlite:///{path}", tmp_path / "new.db")
    assert damage.content(tmp_path / "new.db") == before


def test_a_page_that_names_itself_as_the_next_ends(made: Path, tmp_path: Path) -> None:
    """A chain of overflow pages that leads back to itself."""
    path = copied(made, tmp_path)
    data = bytearray(path.read_bytes())
    for start in range(0, len(data), damage.PAGE_BYTES):
        if 0 < int.from_bytes(data[start : start + 4], "big") < 1000:
            data[start : start + 4] = (start // damage.PAGE_BYTES + 1).to_bytes(4, "big")
    path.write_bytes(data)
    assert len([item for item in packed_in(path) if item]) > 50
