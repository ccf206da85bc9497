"""What a survey times, on a made-up device whose times a formula gives."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from fixtures.lookup_records import BOARD, CPU
from fixtures.model_survey import BLOCKS, GEMM, KERNELS, time_s

from tuner.declare.catalogue import builtin
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import DTYPE_BYTES, Problem
from tuner.declare.space import Config, Space
from tuner.devices.detect import DetectedDevice
from tuner.errors import InputError
from tuner.model import survey_design
from tuner.model.physics import DeviceRates, config_features, library_features, problem_features, traits
from tuner.model.stored import model_of
from tuner.model.survey_design import Design, Named, Ranges, SurveyRequest, Turn, draw, proposals
from tuner.results.measurement import Outcome
from tuner.results.survey import Timing

RANGES = Ranges(most={"m": 4096, "n": 4096, "k": 8192}, layouts=("nn", "nt"))
REQUEST = SurveyRequest(
    GEMM, tuple(KERNELS.values()), DetectedDevice("fake:", BOARD, "cuda"), 1.0, ranges=RANGES, per_problem=12
)


def nothing(problem: Problem, count: int) -> list[Named]:
    """Nothing is proposed."""
    return []


def surveyed(design: Design, count: int, fresh: int = 3) -> list[Turn]:
    """Turns at the first problems, each timed before the next is planned."""
    turns = []
    for number, problem in design.problems():
        if number == count:
            break
        turns.append(timed(design, design.turn(number, problem, fresh)))
    return turns


def timed(design: Design, turn: Turn) -> Turn:
    """A turn whose configs were timed."""
    times = {at: time_s(turn.problem, design.pool.configs[at][1]) for at in turn.configs}
    turn.timings = [Timing(0, at, Outcome.MEASURED, seconds) for at, seconds in times.items()]
    design.learn(turn)
    return turn


def best_s(problem: Problem) -> float:
    """Of all legal configs."""
    return min(
        time_s(problem, config) for config in Space.build(BLOCKS.parameters, BLOCKS.constraints, problem, BOARD)
    )


def test_a_survey_comes_close_to_the_best_of_the_whole_space() -> None:
    design = Design(REQUEST, BOARD, nothing)
    lost = [
        np.log(min(timing.time_s for timing in turn.timings) / best_s(turn.problem))
        for turn in surveyed(design, 120)[60:]
        if turn.configs
    ]
    assert np.mean(lost) < 0.05


@pytest.mark.parametrize(("new", "nearest"), [("float64", "float32"), ("float16", "bfloat16")])
def test_a_dtypes_first_survey_asks_its_nearest(
    monkeypatch: pytest.MonkeyPatch, new: str, nearest: str
) -> None:
    """float32's, which stands in where there is none, knows no config of kernels of 16 bits."""
    monkeypatch.setattr(
        survey_design, "model_of", lambda *of: model_of(*of[:4], "float32" if of[4] == new else of[4])
    )
    problems = [GEMM.problem({"m": 512, "n": 640, "k": 768}, dtype) for dtype in (new, nearest)]
    kernels = tuple(builtin().serving(problems[0], "cuda"))
    request = replace(REQUEST, kernels=kernels, ranges=Ranges(dtype=new))
    proposed, known = (proposals(request, BOARD, None)(problem, 8) for problem in problems)
    assert proposed == known != []


PROBLEMS = [draw(GEMM, Ranges(), number, 0) for number in range(400)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_aligned_and_small_problems_are_drawn_as_often_as_others(dtype: str) -> None:
    problems = [draw(GEMM, Ranges(dtype=dtype), number, 1) for number in range(400)]
    rows = [[tensor.shape[-1] * DTYPE_BYTES[dtype] % 16 for tensor in of.tensors] for of in problems]
    kinds = Counter((any(row), min(of.dims.values()) <= 64) for row, of in zip(rows, problems, strict=True))
    assert all(80 < kinds[unaligned, small] < 120 for unaligned in (True, False) for small in (True, False))
    alone = [draw(GEMM, Ranges({"m": 1}, ("tn",)), number, 0) for number in range(4)]
    assert {of.m for of in alone} == {1}, "never aligned, and drawn all the same"


def test_problems_are_of_all_sizes_and_layouts() -> None:
    most = [max(problem.dims[dim] for problem in PROBLEMS) for dim in ("m", "n", "k")]
    assert all(8192 < longest <= limit for longest, limit in zip(most, (16384, 16384, 65536), strict=True))
    assert sorted({problem.layout for problem in PROBLEMS}) == ["nn", "nt", "tn", "tt"]


def test_the_same_seed_draws_the_same_problem() -> None:
    assert draw(GEMM, Ranges(), 20, 0) == PROBLEMS[20] != draw(GEMM, Ranges(), 20, 1)


def test_ranges_without_problems_are_refused() -> None:
    with pytest.raises(InputError, match="raise most_bytes or most_flops"):
        draw(GEMM, Ranges(most_bytes=1.0), 1, 0)


# --- What configs do at a problem, from declarations

KNOWN = DeviceRates(50e12, 3e12, 3e-6)


def first_configs(target: str, operation: str) -> tuple[dict[str, Kernel], list[tuple[str, Config]]]:
    kernels = {each.name: each for each in builtin().of(operation, target)}
    return kernels, [(name, config) for name, each in kernels.items() for config in each.first_configs()]


@pytest.mark.parametrize("operation", ["gemm", "gemv", "transpose", "bmm", "grouped"])
@pytest.mark.parametrize(("target", "device"), [("cuda", BOARD), ("cpu", CPU)])
def test_built_in_kernels_have_finite_features(operation: str, target: str, device: DeviceInfo) -> None:
    kernels, configs = first_configs(target, operation)
    declared = builtin().operations[operation]
    for layout in declared.layouts:
        like = declared.problem(dict.fromkeys(declared.dims, 64), layout=layout)
        of = traits(kernels, configs, like)
        for sizes in ((1, 1, 1, 1), (16384, 3, 65536, 9), (777, 4096, 17, 1000)):
            problem = declared.problem(dict(zip(declared.dims, sizes, strict=False)), layout=layout)
            features, estimate = config_features(problem, device, of, KNOWN)
            assert np.isfinite(features).all()
            assert np.isfinite(estimate).all()
            assert np.isfinite(problem_features(problem, KNOWN)).all()
            assert np.isfinite(library_features(problem, device, KNOWN)).all()


def test_every_group_has_blocks_of_its_own() -> None:
    kernels, configs = first_configs("cuda", "grouped")
    problem = builtin().operation("grouped").problem({"rows": 1000, "n": 64, "k": 64, "groups": 500})
    features, _ = config_features(problem, BOARD, traits(kernels, configs, problem), KNOWN)
    assert np.exp(features[0]).min() > 131, "500, or as many as stay"
