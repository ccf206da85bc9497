"""Models of a database: which one answers, and what it is fitted to."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fixtures.model_survey import GEMM, plain_model
from fixtures.records import BOARD

from tuner.errors import NothingFound
from tuner.lookup.snapshot import Snapshot
from tuner.model.fitting import timings
from tuner.model.stored import models as known
from tuner.model.stored import name_of, path_of, to_bytes
from tuner.results.measurement import Outcome
from tuner.results.record import ProblemKey
from tuner.results.survey import LIBRARY, SurveyConfig, SurveyPart, Timing
from tuner.store import Store, watched


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(f"sqlite:///{tmp_path}/models.db")


def test_of_published_and_own_models_the_last_fitted_answers(store: Store, tmp_path: Path) -> None:
    model = plain_model()
    before = Snapshot.open(store, tmp_path).state
    watched.add_model(store, "gemm", model.device.name, "cold", to_bytes(model))
    assert Snapshot.open(store, tmp_path).state != before, "what was answered before is not told again"
    folder = tmp_path / "board" / "models"
    folder.mkdir(parents=True)
    for fitted_at, own in (("2999-01-01T00:00:00+00:00", False), ("2001-01-01T00:00:00+00:00", True)):
        published = plain_model()
        object.__setattr__(published, "provenance", {"fitted_at": fitted_at, "published": True})
        (folder / "gemm.json").write_bytes(to_bytes(published))
        [found] = known("gemm", directory=tmp_path, store=store)
        assert ("published" not in found.provenance) is own


def test_models_of_two_dtypes_answer_beside_each_other(store: Store, tmp_path: Path) -> None:
    single = plain_model()
    half = replace(single, traits={("bfloat16", "nn"): single.traits["float32", "nn"]})
    for model, dtype in ((single, "float32"), (half, "bfloat16")):
        watched.add_model(store, name_of(GEMM, dtype), model.device.name, "cold", to_bytes(model))
    for dtype, expected in (
        ("float32", "float32"),
        ("bfloat16", "bfloat16"),
        ("float64", "float32"),
        ("", "float32"),
    ):
        [found] = known("gemm", directory=tmp_path, store=store, dtype=dtype)
        assert list(found.traits) == [(expected, "nn")], "one of another dtype stands in"
    published = path_of(name_of(GEMM, "bfloat16"), half.device.name, tmp_path)
    assert published.name == "gemm-bfloat16.json"
    published.parent.mkdir(parents=True)
    published.write_bytes(to_bytes(half))
    [found] = known("gemm", directory=tmp_path, dtype="bfloat16")
    assert list(found.traits) == [("bfloat16", "nn")]
    assert known("gemm", directory=tmp_path) == []


def test_a_model_is_fitted_to_the_timings_of_one_dtype(store: Store) -> None:
    sizes = ((64, "float32"), (96, "bfloat16"), (128, "float32"), (160, "bfloat16"))
    problems = tuple(
        ProblemKey("gemm", tuple((dim, size) for dim in "mnk"), dtype, "nn") for size, dtype in sizes
    )
    configs = tuple(SurveyConfig("blocks", {"BM": value}, "1") for value in (16, 32, 64))
    timed = [(0, 0), (0, LIBRARY), (1, 2), (2, 0), (3, LIBRARY), (3, 1)]
    part = SurveyPart(
        BOARD, "gemm", "cold", problems, configs,
        tuple(
            Timing(problem, at, Outcome.MEASURED, 1e-6 * number, 0.01)
            for number, (problem, at) in enumerate(timed, start=1)
        ),
    )  # fmt: skip
    store.add(part)
    kernels = [SimpleNamespace(name="blocks", source_hash="1")]
    half = timings(store, GEMM, kernels, BOARD, "cold", "bfloat16")
    assert [(each.dims["m"], each.dtype) for each in half.problems] == [(96, "bfloat16"), (160, "bfloat16")]
    told = {
        (int(problem), LIBRARY if at == LIBRARY else half.configs[at][1]["BM"]): time_s
        for problem, at, time_s in zip(half.problem, half.config, half.time_s, strict=True)
    }
    assert told == pytest.approx({(0, 64): 3e-6, (1, LIBRARY): 5e-6, (1, 32): 6e-6})
    assert len(half.registers) == len(half.configs) == 2
    assert np.unique(timings(store, GEMM, kernels, BOARD).config).tolist() == [LIBRARY, 0]
    with pytest.raises(NothingFound, match="none of gemm \\(float64, cold\\)"):
        timings(store, GEMM, kernels, BOARD, "cold", "float64")
