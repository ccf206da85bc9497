"""Files of records: written, merged in any order, and told of when they are broken."""

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from fixtures.records import BOARD, CPU, champion, full_record, record, square
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import InputError, StoreTrouble
from tuner.results.measurement import CompileReport, Error, Measurement, Outcome
from tuner.results.record import Champion, Record
from tuner.store import Store, lines, tables
from tuner.store.exchange import Counts, export, take


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[[], Store]]:
    """Makes empty databases."""
    numbers = itertools.count()
    with contextlib.ExitStack() as opened:
        yield lambda: opened.enter_context(Store.open(f"sqlite:///{tmp_path}/{next(numbers)}.db"))


def exported(store: Store, path: Path) -> list[str]:
    """All that a store has, as text."""
    export(store, path)
    return path.read_text(encoding="utf-8").splitlines()


# ---- lines

FLOATS = st.floats(allow_nan=False)
TEXTS = st.text('a"\\\n\x85\u2028\N{GRINNING FACE}', max_size=5)
MEASUREMENTS = st.builds(
    Measurement,
    st.sampled_from(Outcome),
    TEXTS,
    st.lists(FLOATS, max_size=5).map(tuple),
    st.none() | st.builds(Error, FLOATS, FLOATS, FLOATS, FLOATS),
    st.none() | st.builds(CompileReport, st.integers(0, 255)),
    st.dictionaries(TEXTS, FLOATS, max_size=2),
    st.dictionaries(TEXTS, FLOATS, max_size=2),
)


@settings(max_examples=50)
@given(MEASUREMENTS, st.dictionaries(TEXTS, st.integers() | st.booleans() | TEXTS, max_size=4))
def test_a_line_says_all_of_a_record(measurement: Measurement, config: dict[str, object]) -> None:
    told = record(square(64), measurement=measurement, config=config)
    line = lines.line_of(told)
    assert lines.parsed(line) == told
    assert "\n" not in line
    json.loads(line, parse_constant=pytest.fail)  # NaN and infinities are no JSON


@pytest.mark.parametrize(("line", "told"), [
    ("[" * 100_000, "it is not JSON"),
    ("{}", "it lacks 'tile_tuner'"),
    ('{"record": {}}', "it lacks 'problem'"),
    ('{"record": null}', "it is no record"),
    ('{"tile_tuner": "records", "format": 99}', "form 99, and this version knows forms up to 4"),
])  # fmt: skip
def test_a_line_that_is_none_is_told(line: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        lines.parsed(line)


# ---- files


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_what_is_exported_is_imported(fresh: Callable[[], Store], tmp_path: Path, ending: str) -> None:
    here, there, path = fresh(), fresh(), tmp_path / f"night{ending}"
    crowned = champion(full_record(), baseline=record(square(64)), speedup=1.5)
    here.add([full_record(), record(square(65), device=CPU)])
    here.crown(crowned)
    assert export(here, path) == Counts(4, 1)
    path = path.rename(tmp_path / "misnamed")  # the first bytes tell the compression
    assert take(there, path) == Counts(4, 1)
    assert take(there, path) == Counts(0, 0, known=5)
    assert there.records() == here.records()
    assert there.champions() == [crowned]


def test_files_may_be_joined_and_sorted(fresh: Callable[[], Store], tmp_path: Path) -> None:
    here, there = fresh(), fresh()
    here.crown([champion(full_record()) for _ in range(3)])
    text = exported(here, tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").write_text("\n".join(sorted(text + text)) + "\n\n")
    assert take(there, tmp_path / "b.jsonl") == Counts(3, 3, known=6)


# ---- merging

EVENTS = [
    record(square(64), measured_at="2026-01-01T00:00:00.000000+00:00"),
    record(square(64), device=replace(BOARD, driver="590"), measured_at="2026-01-03T00:00:00.000000+00:00"),
    record(square(65), device=replace(BOARD, driver="570"), measured_at="2026-01-02T00:00:00.000000+00:00"),
    *(champion(record(square(64)), crowned_at=f"2026-01-0{day}T00:00:00.000000+00:00") for day in (2, 2, 1, 3)),
    champion(record(square(64), device=CPU), baseline=record(square(64), device=CPU)),
]


@settings(max_examples=6)
@given(
    nodes=st.lists(st.lists(st.sampled_from(EVENTS), max_size=6), min_size=1, max_size=4),
    order=st.randoms(use_true_random=False),
)
def test_merging_in_any_order_any_number_of_times_ends_the_same(
    nodes: list[list[Record | Champion]], order: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("merged")
    files = [folder / f"node{number}.jsonl" for number in range(len(nodes))]
    for path, events in zip(files, nodes, strict=True):
        path.write_text("".join(f"{lines.line_of(event)}\n" for event in events))
    shuffled = files * 2
    order.shuffle(shuffled)
    answers = []
    for name, sequence in (("one", files), ("two", shuffled)):
        with Store.open(f"sqlite:///{folder}/{name}.db") as store:
            for path in sequence:
                take(store, path)
            best = [store.champion(square(64), device, "cold") for device in (BOARD, CPU, "NVIDIA H200")]
            text = exported(store, folder / f"{name}.jsonl")
            answers.append((best, store.champions(), store.devices(), text))
    assert answers[0] == answers[1]


# ---- broken files


@pytest.mark.parametrize("ending", [".gz", ".zst"])
@pytest.mark.parametrize("harm", ["cut", "flipped"])
def test_a_damaged_compressed_file(fresh: Callable[[], Store], tmp_path: Path, ending: str, harm: str) -> None:
    here, path = fresh(), tmp_path / f"a.jsonl{ending}"
    here.add([full_record() for _ in range(50)])
    export(here, path)
    data = path.read_bytes()
    middle = len(data) // 2
    changed = data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]
    path.write_bytes(data[:-10] if harm == "cut" else changed)
    there = fresh()
    with pytest.raises(InputError, match=r"Nothing of the file was imported"):
        take(there, path)
    assert there.records() == []
    assert take(there, path, skip_broken=True).broken_lines >= 1


def test_a_file_of_another_kind(fresh: Callable[[], Store], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(bytes(range(256)))
    with pytest.raises(InputError, match=r"line 1 of .*a\.jsonl is not"):
        take(fresh(), tmp_path / "a.jsonl")
    with pytest.raises(InputError, match=r"must exist, got .*No such file"):
        take(fresh(), tmp_path / "none.jsonl")
    with pytest.raises(InputError, match=r"must exist, got .*Is a directory"):
        take(fresh(), tmp_path)


# --- other schemas ------------------------------------------


def content(url: str) -> dict[str, list[tuple[object, ...]]]:
    """All rows of all tables."""
    found = sa.MetaData()
    with sa.create_engine(url, poolclass=sa.NullPool).connect() as connection:
        found.reflect(connection)
        rows = lambda table: [tuple(row) for row in connection.execute(sa.select(table))]
        return {name: rows(table) for name, table in found.tables.items()}


def test_another_schema_is_refused_unharmed(either_url: str) -> None:
    with sa.create_engine(either_url, poolclass=sa.NullPool).begin() as connection:
        connection.exec_driver_sql(f"UPDATE {tables.version.name} SET version_num = '0042'")
    before, told = content(either_url), r"has schema 0042, made by another version; this is .*knows 0006"
    for read_only in (True, False):
        with pytest.raises(StoreTrouble, match=told):
            Store.open(either_url, read_only=read_only)
    assert content(either_url) == before
