"""A limit on the error of a champion: what it says, studies under it, and how it is told."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_device import BEST, BEST_S, BOARD, TOY, copy_toy, rule, stored, study, write_device
from fixtures.records import measured
from fixtures.records import record as made
from hypothesis import given
from hypothesis import strategies as st

from tuner.declare import catalogue
from tuner.declare.catalogue import from_file
from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.errors import InputError
from tuner.lookup import Answer, staleness
from tuner.results import record as records
from tuner.results.measurement import CompileReport, Error, Measurement, Outcome
from tuner.results.objectives import LEAST_ELEMENTS, ErrorLimit, read_error_limit, told
from tuner.results.record import ProblemKey, Record, Role, new_id
from tuner.store import Store
from tuner.store.published import entries

#: Slower than `BEST`, but as exact as the library.
EXACT = {"BLOCK": 128, "ITEMS": 1, "ORDER": "striped"}
RULES = [
    rule(BEST, latency_s=BEST_S, error_rel=3e-7),
    rule(EXACT, latency_s=1.2 * BEST_S, error_rel=1e-7),
    rule({}, latency_s=4 * BEST_S, error_rel=1.1e-7),
]
ratios = st.floats(1, 100)


def toy(n: int) -> Problem:
    return catalogue.from_file(TOY).operation("toy").problem({"n": n})


def error(rms_rel: float) -> Error:
    return Error(5 * rms_rel, rms_rel, 0.5)


@pytest.fixture
def board(tmp_path: Path) -> str:
    return write_device(
        tmp_path / "device.json", rules=RULES, baseline_s=2 * BEST_S, baseline_error_rel=1e-7, noise=1e-4
    )


def trial(folder: Path, config: dict[str, Any], role: Role = Role.TRIAL) -> Measurement:
    """The latest measurement of a config."""
    return [each for each in stored(folder, role) if dict(each.config) == config][-1].measurement


# --- the limit -----------------------------------------------------------------------------------------------


def test_a_limit_is_1_or_more_and_infinity_is_none() -> None:
    assert read_error_limit(None) is read_error_limit(math.inf) is None
    assert (read_error_limit(1), read_error_limit(2.5)) == (1, 2.5)
    for wrong in (0.99, -math.inf, math.nan):
        with pytest.raises(InputError, match="an error limit is 1 or more, times the library's error, got"):
            read_error_limit(wrong)


@given(ratios, ratios, st.floats(1e-9, 1e-3), st.sampled_from([256, 10_000, 10**8]))
def test_finals_have_wider_limits(factor: float, ratio: float, library_rms: float, elements: int) -> None:
    limit = ErrorLimit.beside(factor, error(library_rms), toy(elements))
    found = error(ratio * library_rms)
    exact = limit.ratio(found)
    assert exact == pytest.approx(ratio)
    assert bool(limit.complaint(found)) is (exact > factor)
    assert bool(limit.complaint(found, finals=True)) is (exact > factor * (1 + 4 / math.sqrt(elements)))
    assert limit.complaint(None) == ""


@pytest.mark.parametrize(("library", "n", "why"), [
    (None, 1000, "there is no library to compare with"),
    (error(0.0), 1000, "the library's error is 0"),
    (error(math.nan), 1000, "there is no library to compare with"),
    (error(1e-7), LEAST_ELEMENTS - 1, "or less output than 256 elements"),
])  # fmt: skip
def test_what_cannot_be_compared_is_within_any_limit(library: Error | None, n: int, why: str) -> None:
    limit = ErrorLimit.beside(1.0, library, toy(n))
    assert why in limit.void
    assert limit.complaint(error(1.0)) == limit.complaint(error(1.0), finals=True) == ""
    found = told(Measurement(Outcome.MEASURED, error=error(1.0), circumstances=limit.circumstances))
    assert (found["factor"], found["ratio"], found["says_nothing"]) == (1.0, None, limit.void)


# --- studies -------------------------------------------------------------------------------------------------


def test_a_study_crowns_the_fastest_within_the_limit(tmp_path: Path, board: str) -> None:
    result = study(tmp_path, board, error_limit=1.5)
    assert dict(result.champion.record.config) == EXACT
    assert result.progress.best_s == pytest.approx(1.2 * BEST_S, rel=0.01)
    assert result.progress.outcomes["INACCURATE"] == result.champion.trials["INACCURATE"] == 1
    refused = trial(tmp_path, BEST)
    assert refused.outcome is Outcome.INACCURATE
    assert (refused.samples_s, "time" in refused.stages_s) == ((), False)
    assert re.search(r"times the library's of (1(\.0\d)?e-07|9\.\d+e-08)", refused.reason), refused.reason
    assert refused.reason.endswith("the limit is 1.5 times")
    for kept in (refused, trial(tmp_path, EXACT), result.champion.record.measurement):
        assert kept.circumstances["error_limit"] == 1.5
        assert kept.circumstances["library_rms_rel"] == pytest.approx(1e-7, rel=0.1)
    assert result.champion.record.study.endswith(", error limit 1.5")
    limit = Answer(result.champion).to_json()["error_limit"]
    assert (limit["factor"], limit["says_nothing"]) == (1.5, "")
    assert limit["ratio"] == pytest.approx(1.0, abs=0.1)


# --- equivalence ----------------------------------------


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
    record = made(
        ProblemKey.of(problem), 1e-3, DeviceInfo.from_json(BOARD), kernel=kernel.name, config=BEST,
        source_hash=kernel.source_hash, measurement=measured(1e-3, compiled=compiled),
        origin=str(folder / "toy.py"),
    )  # fmt: skip
    with Store.open(f"sqlite:///{folder / 'studies.db'}") as store:
        store.add(record)
        return next(iter(store.records()))


@pytest.mark.parametrize(("name", "was", "becomes", "why"), [
    ("toy.cu", "", "// A copy.\n", ""), ("toy.py", "", "# Mine.\n", ""),
    ("toy.cu", "< n)", "<= n)", "has changed since"),
    ("toy.py", "block=(c.BLOCK,)", "block=(c.BLOCK, 1)", "is launched otherwise"),
])  # fmt: skip
def test_records_of_other_code_are_stale(folder: Path, name: str, was: str, becomes: str, why: str) -> None:
    record = stored_record(folder)
    text = (folder / name).read_text()
    assert was in text
    (folder / name).write_text(text.replace(was, becomes, 1))
    stale, reason = staleness(record, from_file(folder / "toy.py"))
    assert (stale, why in reason) == (bool(why), True)


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


def test_a_store_reads_older_records_under_the_latest_hash(table: Path, store: Store) -> None:
    table.write_text(
        '["toy cuda blocks"]\nbefore = "between"\nbetween = "now"\n[other]\nround = "about"\nabout = "round"\n'
    )
    problem = from_file(TOY).operation("toy").problem({"n": 1000})
    own = {"kernel": "blocks", "config": BEST, "source_hash": "before"}
    record = made(ProblemKey.of(problem), 1e-3, DeviceInfo.from_json(BOARD), **own)
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
