"""Parts of surveys are kept like records: read back equal, in every copy, and they travel."""

from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.records import BOARD, CPU, survey_part
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.results.measurement import Outcome
from tuner.results.record import Retraction
from tuner.results.survey import SurveyPart, Timing
from tuner.store import Store, exchange, lines, listing, retracting
from tuner.store.retracting import Chosen


def test_what_is_stored_is_read_back_equal_and_once(either_url: str) -> None:
    part = survey_part(30)
    with Store.open(either_url) as store:
        assert (store.add([part, survey_part(device=CPU)]), store.add(part)) == (2, 0)
        assert store.survey_parts("gemm", "NVIDIA H200", "cold") == [part]
        assert store.survey_parts("gemm", BOARD, "cold", "another survey") == []
        assert store.survey_parts("gemm", BOARD, "hot") == []
        assert {device.name for device in store.devices()} == {BOARD.name, CPU.name}


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 5), st.integers(-1, 7), st.sampled_from(Outcome), st.floats(0, 9), st.floats(0, 9),
            st.text("a\0\n", max_size=3),
        ),
        max_size=5,
    )
)  # fmt: skip
def test_a_line_is_read_back_equal(columns: list[tuple[object, ...]]) -> None:
    part = replace(survey_part(), timings=tuple(Timing(*each) for each in columns))
    found = lines.parsed(lines.line_of(part))
    assert isinstance(found, SurveyPart)
    clean = [each._replace(reason=each.reason.replace("\0", "\N{SYMBOL FOR NULL}")) for each in part.timings]
    assert found == replace(part, timings=tuple(clean))


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


def test_surveys_are_taken_back(either_url: str) -> None:
    part, another = survey_part(5), survey_part(6)
    with Store.open(either_url) as store:
        store.add([part, another])
        assert retracting.take_back(store, Chosen((part.id,)), "a busy machine") == 1
        assert store.survey_parts("gemm", BOARD, "cold") == [another]
        assert retracting.take_back(store, Chosen(device=BOARD.name)) == 1
        assert (list(listing.stream(store, SurveyPart, listing.Selection())), store.devices()) == ([], [])
        assert retracting.give_back(store, Chosen((part.id,))) == 1
        assert store.survey_parts("gemm", BOARD, "cold") == [part]
        assert isinstance(next(listing.stream(store, Retraction)), Retraction)
