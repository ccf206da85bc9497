"""What a survey times, on a made-up device whose times a formula gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from fixtures.lookup_records import BOARD
from fixtures.model_survey import BLOCKS, GEMM, KERNELS, time_s
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.declare.problem import Problem
from tuner.declare.space import Config, Constraint, Space
from tuner.devices.detect import DetectedDevice, kind_of
from tuner.lookup.legality import is_point
from tuner.model.design import Ranges
from tuner.model.survey_design import LIBRARY_ALONE, OF_TURNS, Design, SurveyRequest, Turn
from tuner.model.survey_pool import Named, Pool, Seen, Strangers, moved
from tuner.results.measurement import Outcome
from tuner.results.survey import LIBRARY, Timing

RANGES = Ranges(most={"m": 4096, "n": 4096, "k": 8192}, layouts=("nn", "nt"))
REQUEST = SurveyRequest(
    GEMM, tuple(KERNELS.values()), DetectedDevice("fake:", BOARD, "cuda"), 1.0, ranges=RANGES, per_problem=12
)


#: Number of a problem at which configs are timed.
TIMED = next(
    at for at in range(99)
    if np.random.default_rng((0, at, OF_TURNS)).random() >= LIBRARY_ALONE
)  # fmt: skip


def nothing(problem: Problem, count: int) -> list[Named]:
    """Nothing is proposed."""
    return []


def surveyed(design: Design, count: int, fresh: int = 3) -> list[Turn]:
    """Turns at the first problems, each timed before the next is planned."""
    turns = []
    for number, problem in design.problems():
        if number == count:
            break
        turn = design.turn(number, problem, fresh)
        design.learn(problem, [
            Timing(0, at, Outcome.MEASURED, time_s(problem, design.pool.configs[at][1])) for at in turn.configs
        ])  # fmt: skip
        turns.append(turn)
    return turns


def lost(design: Design, turns: Sequence[Turn]) -> float:
    """Mean log of the best time of a turn over that of the whole space."""
    found = []
    for turn in turns:
        if turn.configs:
            own = min(time_s(turn.problem, design.pool.configs[at][1]) for at in turn.configs)
            found.append(np.log(own / best_s(turn.problem)))
    return float(np.mean(found))


def best_s(problem: Problem) -> float:
    """Of all legal configs."""
    from tuner.declare.space import Space

    return min(
        time_s(problem, config) for config in Space.build(BLOCKS.parameters, BLOCKS.constraints, problem, BOARD)
    )


def test_a_survey_comes_closer_to_the_best_than_configs_at_random() -> None:
    guided = Design(REQUEST, BOARD, nothing)
    turns = surveyed(guided, 120)
    at_random = Design(REQUEST, BOARD, nothing)
    random = [
        Turn(each.problem, tuple(
            at
            for named in at_random._strangers.some(
                each.problem, len(each.configs), np.random.default_rng(place)
            )
            if (at := at_random.pool.number(named)) is not None
        ))
        for place, each in enumerate(turns)
    ]  # fmt: skip
    assert lost(guided, turns[60:]) < 0.5 * lost(at_random, random[60:])
    assert lost(guided, turns[60:]) < 0.04


def test_new_configs_are_as_many_as_can_be_compiled() -> None:
    design = Design(REQUEST, BOARD, nothing)
    known: set[tuple[int, str]] = set()
    for turn in surveyed(design, 40, fresh=2):
        new = {(at, turn.problem.layout) for at in turn.configs} - known
        assert len(new) <= 2
        known |= new
    assert len(design.pool.configs) > 15


def test_the_pool_takes_no_more_than_it_is_allowed() -> None:
    design = Design(replace(REQUEST, configs=5), BOARD, nothing)
    surveyed(design, 30)
    assert len(design.pool.configs) == 5


def test_the_library_alone_is_timed_at_some_problems() -> None:
    turns = surveyed(Design(REQUEST, BOARD, nothing), 200)
    alone = [turn.problem for turn in turns if not turn.configs]
    assert abs(len(alone) / len(turns) - LIBRARY_ALONE) < 0.12
    # Which ones says nothing of their dims.
    assert abs(np.mean([np.log(each.m) for each in alone]) / np.log(4096) - 0.5) < 0.1


def test_long_problems_get_fewer_configs() -> None:
    design = Design(replace(REQUEST, per_problem=40), BOARD, nothing)
    short, long = (GEMM.problem({"m": size, "n": size, "k": size}, "", "nn") for size in (64, 8192))
    at = design.pool.number(("blocks", BLOCKS.default_config() or Config({})))
    assert at is not None
    design.seen.add(short, {at: 5e-6})
    design.seen.add(long, {at: 20e-3})
    counts = [len(design.turn(TIMED, replace_dims(each), 99).configs) for each in (short, long)]
    assert counts[0] > 2 * counts[1] >= 8


def replace_dims(problem: Problem) -> Problem:
    """A problem beside it."""
    return GEMM.problem({**problem.dims, "m": problem.m + 8}, "", problem.layout)


def test_what_a_model_proposes_is_timed() -> None:
    proposal = ("blocks", Config({"BM": 32, "BN": 128, "SPLIT": 4, "LOAD": "plain"}))
    design = Design(REQUEST, BOARD, lambda problem, count: [proposal])
    turns = [turn for turn in surveyed(design, 10) if turn.configs]
    assert all(design.pool.number(proposal) in turn.configs for turn in turns)


def test_failed_configs_and_the_library_teach_nothing() -> None:
    design = Design(REQUEST, BOARD, nothing)
    problem = GEMM.problem({"m": 64, "n": 64, "k": 64}, "", "nn")
    design.learn(problem, [Timing(0, LIBRARY, Outcome.MEASURED, 1e-6), Timing(0, 3, Outcome.WRONG_RESULT)])
    assert len(design.seen) == 0


def test_what_was_fast_near_by_in_the_same_layout_comes_first() -> None:
    seen = Seen()

    def at(size: int, layout: str = "nn") -> Problem:
        return GEMM.problem({"m": size, "n": size, "k": size}, "", layout)

    seen.add(at(100), {1: 1e-6, 2: 2e-6})
    seen.add(at(100, "tt"), {3: 1e-6})
    seen.add(at(4000), {4: 1e-3})
    assert seen.promising(at(110))[:2] == [1, 3]
    assert seen.promising(at(3900))[0] == 4
    assert seen.expected_s(at(50)) == 1e-6
    assert seen.expected_s(at(8000)) > 7e-3


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 999), which=st.sampled_from(range(len(BLOCKS.parameters))))
def test_a_moved_value_is_another_of_the_parameter(seed: int, which: int) -> None:
    parameter = BLOCKS.parameters[which]
    for value in parameter.values:
        other = moved(parameter, value, np.random.default_rng(seed))
        assert other in parameter.values
        assert other != value


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 999))
def test_children_are_points_of_their_kernel(seed: int) -> None:
    pool = Pool([BLOCKS], 100)
    parents = [
        ("blocks", Config({"BM": 16, "BN": 16, "SPLIT": 1, "LOAD": "plain"})),
        ("blocks", Config({"BM": 128, "BN": 64, "SPLIT": 16, "LOAD": "wide"})),
    ]
    children = pool.children(parents, 20, np.random.default_rng(seed))
    assert len(children) == 20
    assert all(is_point(BLOCKS.parameters, config) for _, config in children)
    assert pool.children([], 20, np.random.default_rng(seed)) == []


def test_a_config_has_one_number_however_its_parameters_are_ordered() -> None:
    pool = Pool([BLOCKS], 100)
    values = {"BM": 16, "BN": 32, "SPLIT": 1, "LOAD": "plain"}
    first = pool.number(("blocks", Config(dict(reversed(values.items())))))
    assert pool.number(("blocks", Config(values))) == first == 0
    assert list(pool.configs[0][1]) == list(values)
    assert pool.number(("blocks", Config({"BM": 17}))) is None
    assert pool.number(("gone", Config(values))) is None


def test_at_some_problems_the_search_goes_on_and_times_nothing_twice() -> None:
    design = Design(replace(REQUEST, deep=1.0), BOARD, nothing)
    turn: Turn | None = design.turn(TIMED, GEMM.problem({"m": 300, "n": 200, "k": 512}, "", "nn"), 12)
    rounds: list[Turn] = []
    while turn is not None:
        rounds.append(turn)
        times = {at: time_s(turn.problem, design.pool.configs[at][1]) for at in turn.configs}
        design.learn(turn.problem, [Timing(0, at, Outcome.MEASURED, each) for at, each in times.items()])
        turn = design.again(turn, 12)
    assert len(rounds) > 3
    timed = [at for each in rounds for at in each.configs]
    assert len(timed) == len(set(timed)) == len(design.seen.at(rounds[0].problem))
    assert min(design.seen.at(rounds[0].problem).values()) == best_s(rounds[0].problem)
    shallow = Design(replace(REQUEST, deep=0.0), BOARD, nothing)
    assert shallow.again(rounds[0], 12) is None


def test_cpus_are_surveyed_hot_as_their_results_are_published() -> None:
    assert [kind_of(name).survey.regime for name in ("cpu", "cuda")] == ["hot", "cold"]


#: Its tile covers a side as tightly as it can: what is legal at one problem is illegal at most others.
TIED = replace(
    BLOCKS,
    name="tied",
    constraints=(
        Constraint("BM covers M", lambda p, d, c: p.m <= c.BM),
        Constraint("BM is the least that does", lambda p, d, c: p.m > c.BM / 2),
        Constraint("BN divides N", lambda p, d, c: p.n % c.BN == 0),
    ),
)


def tied_problem(m: int, n: int) -> Problem:
    return GEMM.problem({"m": m, "n": n, "k": 64}, "", "nn")


def test_a_kernel_that_no_known_config_suits_gets_some_of_its_own_space() -> None:
    strangers = Strangers([TIED], [tied_problem(16, 128)], BOARD, 3)
    rng = np.random.default_rng(1)
    for m, n in ((16, 64), (100, 48), (33, 16)):
        found = [config for _, config in strangers.some(tied_problem(m, n), 20, rng)]
        assert found
        assert all(m <= each["BM"] < 2 * m and n % each["BN"] == 0 for each in found)
    assert strangers.some(tied_problem(300, 16), 20, rng) == []


def test_a_kernel_that_was_timed_seldom_comes_before_others() -> None:
    strangers, problem = Strangers([BLOCKS, TIED], [tied_problem(16, 128)], BOARD, 3), tied_problem(16, 64)

    def of_tied(timed: dict[str, int]) -> float:
        drawn = [strangers.some(problem, 10, np.random.default_rng(seed), timed) for seed in range(40)]
        return float(np.mean([name == "tied" for each in drawn for name, _ in each[:4]]))

    assert of_tied({"blocks": 100_000, "tied": 500}) > 0.9
    assert 0.3 < of_tied({"blocks": 500, "tied": 500}) < 0.7
    assert of_tied({"blocks": 500, "tied": 100_000}) < 0.1


@settings(deadline=None, max_examples=50)
@given(m=st.integers(1, 300), n=st.integers(1, 300), at=st.integers(0, 10**6))
def test_what_stands_in_for_an_illegal_config_is_legal_and_differs_least(m: int, n: int, at: int) -> None:
    problem = tied_problem(m, n)
    every = Space.build(TIED.parameters, (), problem, BOARD)
    wanted = every[at % len(every)]
    legal = Space.build(TIED.parameters, TIED.constraints, problem, BOARD)
    found = legal.nearest([wanted])
    assert len(found) == min(len(legal), 1)
    for each in found:
        assert each in legal
        changed = sum(each[name] != wanted[name] for name in wanted)
        assert changed == min(sum(other[name] != wanted[name] for name in wanted) for other in legal)


def test_good_configs_of_near_problems_are_fitted_to_this_one() -> None:
    design = Design(replace(REQUEST, kernels=(TIED,)), BOARD, nothing)
    near, here = tied_problem(64, 128), tied_problem(20, 48)
    good = Config({"BM": 64, "BN": 128, "SPLIT": 4, "LOAD": "wide"})
    number = design.pool.number(("tied", good))
    assert number is not None
    design.learn(near, [Timing(0, number, Outcome.MEASURED, 1e-5)])
    turn = design.turn(TIMED, here, 12)
    timed = [dict(design.pool.configs[at][1]) for at in turn.configs]
    assert {"BM": 32, "BN": 16, "SPLIT": 4, "LOAD": "wide"} in timed
