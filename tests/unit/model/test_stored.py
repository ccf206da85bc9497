"""Models as text, and answers from them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.model_survey import CONFIGS, GEMM, KERNELS, plain_model

from tuner.errors import InputError
from tuner.lookup.snapshot import Snapshot
from tuner.model import stored
from tuner.model.predict import Model, Predictor
from tuner.model.stored import from_bytes, models, name_of, path_of, to_bytes
from tuner.store import Store, watched

PROBLEM = GEMM.problem({"m": 1000, "n": 500, "k": 300})


def times(model: Model) -> Any:
    """Seconds of every config, by the model."""
    return [candidate.time_s for candidate in Predictor(model, KERNELS).candidates(PROBLEM, None)]


def test_a_model_that_was_read_answers_as_the_one_that_was_written() -> None:
    model = plain_model()
    again = from_bytes(to_bytes(model))
    np.testing.assert_allclose(times(again), times(model), rtol=1e-6)
    assert again.provenance == model.provenance
    assert list(again.configs) == CONFIGS
    assert Predictor(again, KERNELS).answer(PROBLEM).best == Predictor(again, KERNELS).answer(PROBLEM).best
    assert to_bytes(again) == to_bytes(model)


@pytest.mark.parametrize("at", [0.02, 0.3, 0.97])
def test_a_damaged_model_is_refused(at: float) -> None:
    text = bytearray(to_bytes(plain_model()))
    text[int(at * len(text))] ^= 1
    with pytest.raises(InputError, match=r"fit (it|the model) again"):
        from_bytes(bytes(text))


def test_another_format_is_refused() -> None:
    body = json.loads(to_bytes(plain_model()))
    with pytest.raises(InputError, match="update the tuner or fit the model again"):
        from_bytes(json.dumps({**body, "format": stored.FORMAT + 1}).encode())


def test_of_published_and_own_models_the_last_fitted_answers(tmp_path: Path) -> None:
    store, model = Store.open(f"sqlite:///{tmp_path}/models.db"), plain_model()
    before = Snapshot.open(store, tmp_path).state
    watched.add_model(store, "gemm", model.device.name, "cold", to_bytes(model))
    assert Snapshot.open(store, tmp_path).state != before, "what was answered before is not told again"
    folder = tmp_path / "board" / "models"
    folder.mkdir(parents=True)
    for fitted_at, own in (("2999-01-01T00:00:00+00:00", False), ("2001-01-01T00:00:00+00:00", True)):
        published = plain_model()
        object.__setattr__(published, "provenance", {"fitted_at": fitted_at, "published": True})
        (folder / "gemm.json").write_bytes(to_bytes(published))
        [found] = models("gemm", directory=tmp_path, store=store)
        assert ("published" not in found.provenance) is own


def test_models_of_two_dtypes_answer_beside_each_other(tmp_path: Path) -> None:
    store, single = Store.open(f"sqlite:///{tmp_path}/models.db"), plain_model()
    half = replace(single, traits={("bfloat16", "nn"): single.traits["float32", "nn"]})
    for model, dtype in ((single, "float32"), (half, "bfloat16")):
        watched.add_model(store, name_of(GEMM, dtype), model.device.name, "cold", to_bytes(model))
    single_or_half = {"float32": "float32", "bfloat16": "bfloat16", "float64": "float32", "": "float32"}
    for dtype, expected in single_or_half.items():
        [found] = models("gemm", directory=tmp_path, store=store, arithmetic=dtype)
        assert list(found.traits) == [(expected, "nn")], "one of another dtype stands in"
    published = path_of(name_of(GEMM, "bfloat16"), half.device.name, tmp_path)
    assert published.name == "gemm-bfloat16.json"
    published.parent.mkdir(parents=True)
    published.write_bytes(to_bytes(half))
    [found] = models("gemm", directory=tmp_path, arithmetic="bfloat16")
    assert list(found.traits) == [("bfloat16", "nn")]
    assert models("gemm", directory=tmp_path) == []
