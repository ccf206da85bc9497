"""Precisions in the store: emulated is kept apart, and what was stored before says what it said."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

from fixtures.records import BOARD, champion, record, square

from tuner.store import Store

USUAL = square(64)
EMULATED = replace(USUAL, precision="emulated")


def test_champions_of_precisions_are_apart(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path / 'studies.db'}") as store:
        store.crown(champion(record(USUAL, 2e-3)))
        store.crown(champion(record(EMULATED, 1e-3)))
        usual, emulated = (store.champion(key, BOARD, "cold") for key in (USUAL, EMULATED))
        assert usual is not None
        assert emulated is not None
        assert usual.record.problem == USUAL
        assert emulated.record.problem == EMULATED
        assert len(store.champions()) == 2
        assert [each.problem for each in store.records(problem=EMULATED)] == [EMULATED]


def test_the_usual_precision_is_stored_as_before_there_was_another(tmp_path: Path) -> None:
    path = tmp_path / "studies.db"
    with Store.open(f"sqlite:///{path}") as store:
        store.add(record(USUAL))
        store.add(record(EMULATED))
    connection = sqlite3.connect(path)
    found = connection.execute("SELECT dtype FROM tuner_problems ORDER BY number").fetchall()
    connection.close()
    assert found == [("float32",), ("float32 emulated",)]
