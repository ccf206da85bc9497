"""Parts of surveys are kept like records: read back equal, in every copy, and they travel."""

from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.records import BOARD, CPU, survey_part

from tuner.results.measurement import Outcome
from tuner.results.record import Retraction
from tuner.results.survey import SurveyPart, Timing
from tuner.store import Store, exchange, lines, listing, retracting
from tuner.store.retracting import Chosen


def test_what_is_stored_is_read_back_equal_and_once(either_store: Store) -> None:
    part = survey_part(30)
    assert (either_store.add([part, survey_part(device=CPU)]), either_store.add(part)) == (2, 0)
    assert either_store.survey_parts("gemm", "NVIDIA H200", "cold") == [part]
    assert either_store.survey_parts("gemm", BOARD, "cold", "another survey") == []
    assert either_store.survey_parts("gemm", BOARD, "hot") == []
    assert {device.name for device in either_store.devices()} == {BOARD.name, CPU.name}


def test_a_line_whose_numbers_are_of_nothing_is_refused() -> None:
    part = replace(survey_part(), timings=(Timing(99, 0, Outcome.MEASURED, 1.0),))
    with pytest.raises(ValueError, match="a problem and a config of its part"):
        lines.parsed(lines.line_of(part))


def test_surveys_travel(tmp_path: Path, either_url: str) -> None:
    parts = sorted((survey_part(5), survey_part(device=CPU)), key=lambda part: part.id)
    with Store.open(either_url) as store, Store.open(f"sqlite:///{tmp_path / 'other.db'}") as other:
        store.add(parts)
        file = tmp_path / "all.jsonl.gz"
        counts = exchange.export(store, file)
        assert (counts.surveys, counts.timings) == (2, 8)
        assert exchange.take(other, file).surveys == 2
        assert exchange.take(other, file).surveys == exchange.merge(other, store).surveys == 0
        assert list(listing.everything(other)) == parts
        assert exchange.export(store, file, listing.Selection(device=CPU.name)).surveys == 1
        assert exchange.export(store, file, listing.Selection(shape=(16, 16, 16))).surveys == 0


def test_surveys_are_taken_back(either_store: Store) -> None:
    part, another = survey_part(5), survey_part(6)
    either_store.add([part, another])
    assert retracting.take_back(either_store, Chosen((part.id,)), "a busy machine") == 1
    assert either_store.survey_parts("gemm", BOARD, "cold") == [another]
    assert retracting.take_back(either_store, Chosen(device=BOARD.name)) == 1
    assert (list(listing.stream(either_store, SurveyPart, listing.Selection())), either_store.devices()) == (
        [],
        [],
    )
    assert retracting.give_back(either_store, Chosen((part.id,))) == 1
    assert either_store.survey_parts("gemm", BOARD, "cold") == [part]
    assert isinstance(next(listing.stream(either_store, Retraction)), Retraction)
