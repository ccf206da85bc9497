"""Parts of surveys are kept like records: read back equal, in every copy, and they travel."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.postgres import Databases
from fixtures.records import BOARD, CPU, survey_part
from hypothesis import given
from hypothesis import strategies as st

from tuner.cli.main import run
from tuner.results.measurement import Outcome
from tuner.results.record import ProblemKey, Retraction
from tuner.results.survey import LIBRARY, SurveyConfig, SurveyPart, Timing
from tuner.store import Store, exchange, lines, listing, retracting
from tuner.store.lines import ledger_file
from tuner.store.retracting import Chosen

#: Stored bytes of a timing at the most.
MOST_BYTES = 150


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'studies.db'}"
    return Databases(request.getfixturevalue("postgresql")).fresh()


def made_up(count: int, per_part: int = 600) -> list[SurveyPart]:
    """Timings of 400 configs at drawn problems, of the size of real ones."""
    rng = random.Random(1)
    names = "BM", "BN", "BK", "TM", "TN", "VECTOR", "PAD", "SPLIT_K", "BLOCKS_PER_SM", "STAGES", "SWIZZLE"
    configs = [
        SurveyConfig(
            f"kernel {at % 6}", {name: rng.choice((1, 2, 4, 8, 64, 128)) for name in names}, f"{at % 6:064x}"
        )
        for at in range(400)
    ]
    parts = []
    for start in range(0, count, per_part):
        problems = tuple(
            ProblemKey("gemm", tuple((dim, rng.randrange(1, 16384)) for dim in "mnk"), "float32", "nn")
            for _ in range(per_part // 40)
        )
        timings = tuple(
            Timing(
                at // 40, LIBRARY if at % 40 == 0 else rng.randrange(400), Outcome.MEASURED,
                round(rng.lognormvariate(-9, 2), 12), round(rng.random() / 30, 4),
            )
            for at in range(min(per_part, count - start))
        )  # fmt: skip
        used = sorted({each.config for each in timings} - {LIBRARY})
        place = {config: at for at, config in enumerate(used)} | {LIBRARY: LIBRARY}
        kept = tuple(each._replace(config=place[each.config]) for each in timings)
        parts.append(SurveyPart(BOARD, "gemm", "cold", problems, tuple(configs[at] for at in used), kept))
    return parts


def test_what_is_stored_is_read_back_equal_and_once(url: str) -> None:
    part = survey_part(30)
    with Store.open(url) as store:
        assert (store.add([part, survey_part(device=CPU)]), store.add(part)) == (2, 0)
        assert store.survey_parts("gemm", "NVIDIA H200", "cold") == [part]
        assert store.survey_parts("gemm", BOARD, "cold", "another survey") == []
        assert store.survey_parts("gemm", BOARD, "hot") == []
        assert {device.name for device in store.devices()} == {BOARD.name, CPU.name}


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5), st.integers(-1, 7), st.sampled_from(Outcome), st.floats(0, 9), st.floats(0, 9),
            st.text(),
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


def test_a_timing_takes_few_bytes(tmp_path: Path) -> None:
    path, count = tmp_path / "studies.db", 20_000
    with Store.open(f"sqlite:///{path}") as store:
        empty = path.stat().st_size
        for part in made_up(count):
            store.add(part)
        (tally,) = listing.survey_tallies(store)
    assert tally.timings == count
    assert (path.stat().st_size - empty) / count < MOST_BYTES / 2
    assert ledger_file(path).stat().st_size / count < MOST_BYTES / 2


def test_surveys_travel(tmp_path: Path, url: str) -> None:
    parts = sorted((survey_part(5), survey_part(device=CPU)), key=lambda part: part.id)
    with Store.open(url) as store, Store.open(f"sqlite:///{tmp_path / 'other.db'}") as other:
        store.add(parts)
        file = tmp_path / "all.jsonl.gz"
        counts = exchange.export(store, file)
        assert (counts.surveys, counts.timings) == (2, 8)
        assert exchange.take(other, file).surveys == 2
        assert exchange.take(other, file).surveys == exchange.merge(other, store).surveys == 0
        assert list(listing.everything(other)) == parts
        assert exchange.export(store, file, listing.Selection(device=CPU.name)).surveys == 1
        assert exchange.export(store, file, listing.Selection(shape=(16, 16, 16))).surveys == 0


def test_surveys_are_taken_back(url: str) -> None:
    part, another = survey_part(5), survey_part(6)
    with Store.open(url) as store:
        store.add([part, another])
        assert retracting.take_back(store, Chosen((part.id,)), "a busy machine") == 1
        assert store.survey_parts("gemm", BOARD, "cold") == [another]
        assert retracting.take_back(store, Chosen(device=BOARD.name)) == 1
        assert (list(listing.stream(store, SurveyPart, listing.Selection())), store.devices()) == ([], [])
        assert retracting.give_back(store, Chosen((part.id,))) == 1
        assert store.survey_parts("gemm", BOARD, "cold") == [part]
        assert isinstance(next(listing.stream(store, Retraction)), Retraction)


def test_stats_and_export_tell_of_surveys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    with Store.open(url) as store:
        store.add(survey_part(9))
    assert run(["records", "stats", "--db", url]) == 0
    assert "timings" in capsys.readouterr().out
    assert run(["records", "export", str(tmp_path / "a.jsonl"), "--db", url]) == 0
    assert "9 timings of surveys" in capsys.readouterr().err
