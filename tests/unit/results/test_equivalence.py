"""Records outlive a change of source that changes no machine code, and no other."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.fake_device import BEST, BOARD, TOY, copy_toy

from tuner.declare.catalogue import from_file
from tuner.declare.hardware import DeviceInfo
from tuner.declare.space import Config
from tuner.lookup import staleness
from tuner.results import record as records
from tuner.results.measurement import CompileReport, Measurement, Outcome
from tuner.results.record import ProblemKey, Record, Role, new_id
from tuner.store import Store
from tuner.store.published import entries


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The toy's kernels, to be changed."""
    copy_toy(tmp_path)
    return tmp_path


def stored_record(folder: Path) -> Record:
    """A record as a study leaves it, read back from a store."""
    catalogue = from_file(folder / "toy.py")
    kernel, config = catalogue.of("toy", "cuda")[0], Config(BEST)
    problem = catalogue.operation("toy").problem({"n": 1000})
    compiled = CompileReport(launch_hash=kernel.launch_hash(problem, config))
    measurement = Measurement(Outcome.MEASURED, samples_s=(1e-3,), compiled=compiled)
    record = Record(
        ProblemKey.of(problem), DeviceInfo.from_json(BOARD), "cold", Role.TRIAL, kernel.name, BEST,
        kernel.source_hash, measurement, {"flops": 0.0, "bytes": 8e3}, origin=str(folder / "toy.py"),
    )  # fmt: skip
    with Store.open(f"sqlite:///{folder / 'studies.db'}") as store:
        store.add(record)
        return next(iter(store.records()))


@pytest.mark.parametrize(("name", "comment"), [("toy.cu", "// A copy."), ("toy.py", "# Mine.")])
def test_a_comment_makes_nothing_stale(folder: Path, name: str, comment: str) -> None:
    record = stored_record(folder)
    (folder / name).write_text(f"{comment}\n{(folder / name).read_text()}")
    assert staleness(record, from_file(folder / "toy.py")) == (False, "")


@pytest.mark.parametrize(("name", "was", "becomes", "why"), [
    ("toy.cu", "< n)", "<= n)", "has changed since"),
    ("toy.py", "block=(c.BLOCK,)", "block=(c.BLOCK, 1)", "is launched otherwise"),
])  # fmt: skip
def test_records_of_other_constants_are_stale(
    folder: Path, name: str, was: str, becomes: str, why: str
) -> None:
    record = stored_record(folder)
    text = (folder / name).read_text()
    assert was in text
    (folder / name).write_text(text.replace(was, becomes))
    stale, reason = staleness(record, from_file(folder / "toy.py"))
    assert stale is True
    assert why in reason


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a table of equivalent sources can be put in place of the project's."""

    def forget() -> None:
        for cached in (records._successors, records.latest_hash, records.equivalent_hashes):
            cached.cache_clear()

    monkeypatch.setattr(records, "kernels_folder", lambda: tmp_path)
    forget()
    yield tmp_path / records.EQUIVALENT_SOURCES
    monkeypatch.undo()
    forget()


def test_a_store_reads_older_records_under_the_latest_hash(table: Path, tmp_path: Path) -> None:
    table.write_text(
        '["toy cuda blocks"]\nbefore = "between"\nbetween = "now"\n[other]\nround = "about"\nabout = "round"\n'
    )
    problem = from_file(TOY).operation("toy").problem({"n": 1000})
    record = Record(
        ProblemKey.of(problem), DeviceInfo.from_json(BOARD), "cold", Role.TRIAL, "blocks", BEST, "before",
        Measurement(Outcome.MEASURED, samples_s=(1e-3,)), {"flops": 1.0, "bytes": 1.0},
    )  # fmt: skip
    with Store.open(f"sqlite:///{tmp_path / 'studies.db'}") as store:
        store.add([record, *(replace(record, id=new_id(), source_hash=name) for name in ("else", "round"))])
        assert {each.source_hash for each in store.records()} - {"round", "about"} == {"else", "now"}
        found = store.best_record(record.problem, record.device, "cold", kernels={"blocks": "now"})
        assert found.id == record.id


#: CPU kernels whose code has changed since their results were published: they are compiled in parts now.
CHANGED = {"packed", "direct", "streaming", "micro_tiles"}


def test_no_published_champion_is_stale() -> None:
    found = [each.champion.record for each in entries()]
    assert len(found) >= 140
    stale = [record for record in found if staleness(record) != (False, "")]
    assert {(record.device.kind, record.kernel) for record in stale} <= {("cpu", name) for name in CHANGED}
