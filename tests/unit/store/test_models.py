"""Models in a database."""

from pathlib import Path

import pytest
from fixtures.model_survey import plain_model

from tuner.lookup.model.shelf import models as known
from tuner.lookup.model.stored import to_bytes
from tuner.lookup.snapshot import Snapshot
from tuner.store import Store, models, tables


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(f"sqlite:///{tmp_path}/models.db")


def test_the_latest_model_of_a_device_is_kept(store: Store) -> None:
    for text in (b"one", b"two"):
        models.add(store, "gemm", "Board", "cold", text)
    models.add(store, "gemm", "Other board", "cold", b"three")
    models.add(store, "gemm", "Board", "hot", b"four")
    found = models.latest(store, "gemm", "cold")
    assert {device: text for device, (_, text) in found.items()} == {"Board": b"two", "Other board": b"three"}
    assert models.latest(store, "gemv", "cold") == {}


def test_a_damaged_model_is_left_out(store: Store) -> None:
    models.add(store, "gemm", "Board", "cold", b"one")
    with store._engine.execution_options(writes=True).begin() as connection:
        connection.execute(tables.models.update().values(data=b"nonsense"))
    assert models.latest(store, "gemm", "cold") == {}


def test_of_published_and_own_models_the_last_fitted_answers(store: Store, tmp_path: Path) -> None:
    model = plain_model()
    before = Snapshot.open(store, tmp_path).state
    models.add(store, "gemm", model.device.name, "cold", to_bytes(model))
    assert Snapshot.open(store, tmp_path).state != before, "what was answered before is not told again"
    folder = tmp_path / "board" / "models"
    folder.mkdir(parents=True)
    for fitted_at, own in (("2999-01-01T00:00:00+00:00", False), ("2001-01-01T00:00:00+00:00", True)):
        published = plain_model()
        object.__setattr__(published, "provenance", {"fitted_at": fitted_at, "published": True})
        (folder / "gemm.json").write_bytes(to_bytes(published))
        [found] = known("gemm", directory=tmp_path, store=store)
        assert ("published" not in found.provenance) is own
