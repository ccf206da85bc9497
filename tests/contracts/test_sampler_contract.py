"""What every sampler of a search obeys, ours and Optuna's."""

import importlib.util
from collections.abc import Iterator

import pytest
from threadpoolctl import threadpool_limits

from tuner.declare.space import Config, Constraint, Space, choice, powers_of_two
from tuner.errors import InputError
from tuner.results.measurement import Outcome
from tuner.search import SAMPLERS, Candidate, Known, Observation, Search, SearchOptions

#: Packages without which Optuna's sampler cannot run.
NEEDS = {"gp": "torch", "cmaes": "cmaes"}
PRESENT = [name for name in SAMPLERS if name not in NEEDS or importlib.util.find_spec(NEEDS[name]) is not None]
ABSENT = [name for name in SAMPLERS if name not in PRESENT]


def spaces() -> dict[str, Space]:
    """Two kernels of 37 legal configs in all."""
    tile = (powers_of_two("X", 1, 16), powers_of_two("Y", 1, 16), choice("MODE", "a", "b"))
    return {
        "tiled": Space.build(tile, (Constraint("X * Y is 16", lambda p, d, c: c.X * c.Y == 16),), None, None),
        "plain": Space.build((choice("N", *range(1, 28)),), (), None, None),
    }


def measure(candidate: Candidate) -> tuple[Outcome, float | None]:
    """Every kind of ending, by config."""
    if candidate.kernel == "plain":
        number = candidate.config.N
        if number % 9 == 0:
            return Outcome.CRASHED, None
        return (Outcome.PRUNED, 2.0) if number % 5 == 0 else (Outcome.MEASURED, 1.0 + abs(number - 20) / 10)
    return Outcome.MEASURED, 1.0 + abs(candidate.config.X - 4)


def asked(search: Search, batch: int, most: int = 1000) -> list[tuple[str, Config]]:
    """Runs a search to its end, or to so many trials."""
    found: list[tuple[str, Config]] = []
    while len(found) < most and (batch_of := search.ask(min(batch, most - len(found)))):
        found += [(each.kernel, each.config) for each in batch_of]
        for each in batch_of:
            search.tell(each, *measure(each))
    return found


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of PyTorch wait for each other long where a core is taken."""
    with threadpool_limits(1):
        yield


@pytest.mark.parametrize(  # a Gaussian process is slow to ask; the rest of a space is asked of it further below
    ("sampler", "batch"), [(name, batch) for name in PRESENT for batch in (1, 5, 37)[2 * (name == "gp") :]]
)
def test_every_legal_config_is_asked_once_and_then_none(sampler: str, batch: int) -> None:
    search = Search(spaces(), SearchOptions(sampler=sampler, seed=1, budget=100))
    found = asked(search, batch)
    every = [(name, config) for name, space in spaces().items() for config in space]
    assert len(found) == len(every) == 37
    assert set(found) == set(every)
    assert search.ask(3) == []
    assert search.stopped == "space covered"


@pytest.mark.parametrize("sampler", PRESENT)
def test_the_same_seed_and_tells_give_the_same_configs(sampler: str) -> None:
    one, other = (
        asked(Search(spaces(), SearchOptions(sampler=sampler, seed=3, budget=15)), 3, 15) for _ in range(2)
    )
    assert one == other


@pytest.mark.parametrize("sampler", PRESENT)
def test_what_was_measured_before_is_not_asked_again(sampler: str) -> None:
    first = Search(spaces(), SearchOptions(sampler=sampler, seed=1, budget=100))
    before = []
    for each in first.ask(15):
        outcome, time_s = measure(each)
        before.append(Observation(each.kernel, each.config, outcome, time_s))
    gone = Observation("tiled", Config({"X": 3, "Y": 5, "MODE": "a"}), Outcome.MEASURED, 1.0)
    other = Observation("removed", Config({}), Outcome.MEASURED, 1.0)
    search = Search(
        spaces(), SearchOptions(sampler=sampler, seed=2, budget=100), Known(past=[*before, gone, other])
    )
    found = asked(search, 6)
    assert len(found) == 22
    assert not set(found) & {(each.kernel, each.config) for each in before}


@pytest.mark.parametrize("sampler", [name for name in PRESENT if name not in ("random", "bruteforce")])
def test_starts_come_first_and_illegal_ones_are_left_out(sampler: str) -> None:
    starts = [
        ("plain", Config({"N": 13})),
        ("plain", Config({"N": 99})),
        ("absent", Config({})),
        ("tiled", Config({"X": 8, "Y": 2, "MODE": "b"})),
        ("plain", Config({"N": 13})),
    ]
    search = Search(spaces(), SearchOptions(sampler=sampler, seed=1), Known(starts=starts))
    found = [(each.kernel, each.config) for each in search.ask(3)]
    assert found[:2] == [starts[0], starts[3]]
    assert len(set(found)) == 3


@pytest.mark.parametrize("sampler", PRESENT)
@pytest.mark.parametrize("outcome", [Outcome.COMPILE_FAILED, Outcome.INACCURATE])
def test_only_failures_do_no_harm(sampler: str, outcome: Outcome) -> None:
    search = Search(spaces(), SearchOptions(sampler=sampler, seed=1, budget=100))
    count = 0
    while found := search.ask(4):
        count += len(found)
        for each in found:
            search.tell(each, outcome, None)
    assert count == 37


@pytest.mark.parametrize("sampler", PRESENT)
@pytest.mark.parametrize("most", [4, 5])
def test_a_space_of_one_config_is_asked_once_and_an_empty_one_never(sampler: str, most: int) -> None:
    rule = Constraint("X exceeds a number", lambda p, d, c: most > c.X)
    space = Space.build((choice("X", 4), choice("MODE", "a")), (rule,), None, None)
    search = Search({"k": space}, SearchOptions(sampler=sampler, seed=1))
    assert asked(search, 2) == [("k", Config({"X": 4, "MODE": "a"}))] * (most - 4)
    assert search.stopped == "space covered"


@pytest.mark.parametrize("sampler", ABSENT)
def test_a_sampler_whose_package_is_absent_says_so(sampler: str) -> None:
    search = Search(spaces(), SearchOptions(sampler=sampler, seed=1))
    with pytest.raises(InputError, match=f"the sampler {sampler} needs the package {NEEDS[sampler]}"):
        asked(search, 1)
