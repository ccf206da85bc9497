"""Parameters, constraints and the legal configs."""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.declare import rules
from tuner.declare.catalogue import Declarations, builtin
from tuner.declare.folders import kernels_folder
from tuner.declare.hardware import DeviceInfo
from tuner.declare.space import Config, Constraint, Parameter, Space, choice, powers_of_two
from tuner.errors import DeclarationError, InputError

THREADS = Constraint("a block has at most 64 threads", lambda p, d, c: c.X * c.Y <= 64)
WHOLE = Constraint("X is a multiple of V", lambda p, d, c: c.X % c.V == 0)
PARAMETERS = (
    powers_of_two("X", 1, 32), choice("V", 1, 2, 3, 4), powers_of_two("Y", 1, 32), choice("MODE", "a", "b"),
)  # fmt: skip


def by_hand(parameters: Any, constraints: Any, problem: Any = None, device: Any = None) -> list[Config]:
    """Legal configs the slow way."""
    names = [each.name for each in parameters]
    every = (
        Config(dict(zip(names, row, strict=True))) for row in itertools.product(*(p.values for p in parameters))
    )
    return [c for c in every if all(each.rule(problem, device, c) for each in constraints)]


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    rules=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 12)), max_size=4),
    seed=st.integers(0, 3),
)
def test_any_space_equals_one_by_hand(sizes: list[int], rules: list[tuple[int, int, int]], seed: int) -> None:
    parameters = [choice(f"P{at}", *range(1, size + 1)) for at, size in enumerate(sizes)]

    def rule(first: int, second: int, most: int) -> Constraint:
        one, other = f"P{first % len(sizes)}", f"P{second % len(sizes)}"
        return Constraint("bounded product", lambda p, d, c: c[one] * c[other] <= most)

    constraints = [rule(*each) for each in rules]
    space = Space.build(parameters, constraints, None, None, seed=seed)
    expected = by_hand(parameters, constraints)
    assert list(space) == expected
    assert [space.index_of(config) for config in expected] == list(range(len(expected)))
    assert sum(count for _, count in space.rejected) + len(space) == space.raw_size
    assert not space.sampled


def test_an_empty_space_says_which_constraint_rejects_and_asks_none_behind_it() -> None:
    def after(p: Any, d: Any, c: Any) -> Any:
        raise AssertionError

    never, later = Constraint("n is even", lambda p, d, c: p % 2 == 0), Constraint("X is below 8", after)
    space = Space.build(PARAMETERS, (THREADS, never, later), 3, None)
    assert [count for _, count in space.rejected] == [0, space.raw_size, 0]
    assert len(space) == 0


TEN = [choice(f"P{at}", *range(10)) for at in range(6)]
EVEN = Constraint("P0 + P5 is even", lambda p, d, c: (c.P0 + c.P5) % 2 == 0)


def test_more_than_the_limit_is_sampled_uniformly_and_stays_legal() -> None:
    space = Space.build(TEN, (EVEN,), None, None, limit=20_000, seed=1)
    assert space.sampled
    assert 5_000 < len(space) <= 20_000
    codes = space.codes
    assert np.all((codes[:, 0] + codes[:, 5]) % 2 == 0)
    assert len(np.unique(codes, axis=0)) == len(codes)
    assert np.all(np.abs(codes.mean(axis=0) - 4.5) < 0.3)
    again, other = (Space.build(TEN, (EVEN,), None, None, limit=20_000, seed=seed).codes for seed in (1, 6))
    assert np.array_equal(codes, again)
    assert not np.array_equal(codes, other)


def test_a_sampled_space_takes_in_legal_configs_that_it_meets() -> None:
    space = Space.build(TEN, (EVEN,), None, None, limit=1_000, seed=1)
    before = len(space)
    neighbours = space.neighbours(0)
    assert len(neighbours) == 4 * 9 + 2 * 4
    assert len(space) > before
    assert all(space.index_of(space[int(row)]) == row for row in neighbours)
    assert {f"P{at}": 0 for at in range(5)} | {"P5": 1} not in space


def test_a_sample_is_the_same_in_every_version() -> None:
    """Predictions near by, and studies that go on, rest on it."""
    rules = (
        Constraint("A and B differ", lambda p, d, c: c.A != c.B),
        Constraint("C is not above D", lambda p, d, c: c.C <= c.D),
        Constraint("the sum is even", lambda p, d, c: (c.A + c.B + c.C + c.D) % 2 == 0),
    )
    space = Space.build([choice(name, *range(1, 9)) for name in "ABCD"], rules, None, None, limit=100)
    assert [count for _, count in space.rejected] == [512, 1643, 971]
    assert len(space) == 26
    assert [tuple(space[at].values()) for at in (0, 10, 20)] == [(2, 6, 7, 7), (5, 1, 2, 6), (6, 2, 1, 7)]


@pytest.mark.parametrize(("name", "values"), [("not a name", (1,)), ("A", ()), ("A", (1, 1))])
def test_a_wrong_parameter_is_refused(name: str, values: Any) -> None:
    with pytest.raises(DeclarationError, match=r"is an identifier|needs distinct values"):
        Parameter(name, values, "log2")


def test_scales_follow_from_values() -> None:
    assert choice("A", 8, 2, 4) == Parameter("A", (2, 4, 8), "log2")
    assert choice("A", 0, 1, 2).scale == "linear"
    assert choice("A", True, False).scale == "categorical"
    assert powers_of_two("A", 3, 20).values == (4, 8, 16)


def test_a_config_is_an_immutable_mapping() -> None:
    config = Config({"A": 1, "B": "x"})
    assert config.A == 1
    assert dict(config) == {"A": 1, "B": "x"}
    assert hash(config) == hash(Config({"B": "x", "A": 1}))
    with pytest.raises(AttributeError, match="a config does not change"):
        config.A = 2
    with pytest.raises(AttributeError, match="config has no C; it has A, B"):
        _ = config.C


@pytest.mark.parametrize("rule", [lambda p, d, c: c.X > 1 and c.Y > 1, lambda p, d, c: c.Z == 1])
def test_a_rule_that_does_not_take_arrays_is_refused(rule: Any) -> None:
    with pytest.raises(DeclarationError, match=r'must work on arrays as on scalars; "odd" does not'):
        Space.build(PARAMETERS, (Constraint("odd", rule),), None, None)


def test_near_a_config_is_what_is_legal_and_differs_in_few_parameters() -> None:
    whole = Space.build(PARAMETERS, (THREADS, WHOLE), None, None)
    for centre in (whole[0], whole[len(whole) // 2], whole[-1]):
        differing = {each: sum(each[name] != centre[name] for name in centre) for each in whole}
        one, two = ({each for each, count in differing.items() if 1 <= count <= most} for most in (1, 2))
        index = whole.index_of(centre)
        neighbours = [whole[row] for row in whole.neighbours(index).tolist()]
        assert (set(neighbours), len(neighbours)) == (one, len(one))
        steps = [abs(np.log2(config.X / centre.X)) for config in neighbours if config.X != centre.X]
        assert steps == sorted(steps), "the nearest first"
        assert {whole[row] for row in whole.beside(index, 10_000).tolist()} == two
        # The same without looking at all that is legal.
        alone = Space.at(PARAMETERS, (THREADS, WHOLE), None, None, centre)
        assert {alone[row] for row in alone.beside(0, 10_000).tolist()} == two
        around = whole.around(index, 3, 400, np.random.default_rng(1)).tolist()
        assert len(set(around)) == len(around) > 5
        assert {differing[whole[row]] for row in around} <= {2, 3}


def test_the_nearest_legal_config_differs_in_the_fewest_parameters() -> None:
    parameters = (powers_of_two("A", 1, 64), choice("B", "x", "y"), choice("C", 1, 2, 3))
    legal = Space.build(parameters, [Constraint("A is small", lambda p, d, c: c.A <= 8)], None, None)
    far, near = Config({"A": 64, "B": "y", "C": 2}), Config({"A": 8, "B": "y", "C": 2})
    assert [legal[index] for index in legal.nearest([far, legal[3]])] == [near, legal[3]]
    nothing = Space.build(parameters, [Constraint("no", lambda p, d, c: c.A < 0)], None, None)
    assert nothing.nearest([far]) == []
    assert [None if each is None else each.tolist() for each in legal.positions] == [
        [0, 1 / 6, 2 / 6, 0.5, 4 / 6, 5 / 6, 1], None, [0, 0.5, 1],
    ]  # fmt: skip


def test_a_space_may_be_of_given_configs_or_of_the_only_one() -> None:
    configs = [{"X": 4, "MODE": "b"}, {"X": 1, "MODE": "a"}]
    space = Space.of((powers_of_two("X", 1, 8), choice("MODE", "a", "b")), configs)
    assert [dict(config) for config in space] == configs
    for wrong in ({"X": 8, "MODE": "a"}, {"X": 4, "MODE": "c"}, {"X": 4}, configs[0] | {"W": 1}, 7):
        assert wrong not in space
    with pytest.raises(InputError, match=r"a config must be legal in this space, got .*'X': 5"):
        space.index_of({"X": 5, "MODE": "a"})
    only = Space.build((), (), None, None)
    assert (list(only), only.index_of({}), len(only.neighbours(0))) == ([Config({})], 0, 0)


# --- rules that kernels share ----------------------------------------


#: Rules that kernels of one folder share lie there.
of_gemm = Declarations().load(kernels_folder() / "gemm/cuda/_rules.py")
GPU = DeviceInfo(
    name="small GPU", kind="cuda", compute_capability=80, sm_count=10, warp_size=32, max_threads_per_block=1024,
    max_threads_per_sm=2048, shared_bytes_per_block=99 << 10, shared_bytes_per_sm=100 << 10,
    registers_per_block=65_536, registers_per_thread=255,
)  # fmt: skip
CPU = DeviceInfo(name="four cores", kind="cpu", cores=4, vector_bytes=32)
GEMM = builtin().operation("gemm").problem({"m": 100, "n": 64, "k": 1000}, "float32", "nn")
DOUBLE = builtin().operation("gemm").problem({"m": 100, "n": 64, "k": 1000}, "float64", "nn")


def kept(rule: Constraint, device: Any = GPU, problem: Any = GEMM, **columns: Any) -> list[bool]:
    """Which configs a rule keeps, asked about all at once and one by one."""
    arrays = {name: np.array(values) for name, values in columns.items()}
    count = len(next(iter(arrays.values())))
    together = np.broadcast_to(rule.rule(problem, device, SimpleNamespace(**arrays)), count).tolist()
    alone = [
        bool(rule.rule(problem, device, SimpleNamespace(**{name: columns[name][at] for name in columns})))
        for at in range(count)
    ]
    assert together == alone, "a rule works on numbers and on arrays alike"
    return alone


T, S, R = (lambda p, c: c.T), (lambda p, c: c.S), (lambda p, c: c.R)
OLD = DeviceInfo(name="old GPU", kind="cuda", compute_capability=75)
HUGE = builtin().operation("gemm").problem({"m": 1, "n": 2**30, "k": 1})
KEPT: tuple[tuple[Constraint, dict[str, Any], list[bool]], ...] = (
    (rules.threads_fit(T, least_warps=2), {"T": [32, 64, 1024, 1025]}, [False, True, True, False]),
    (rules.shared_fits("tiles", S), {"S": [99 << 10, (99 << 10) + 1]}, [True, False]),
    (rules.static_shared_fits("a tile", S), {"S": [48 << 10, (48 << 10) + 1]}, [True, False]),
    # The device keeps 1 KiB for itself for each block.
    (rules.blocks_fit(T, S),
     {"T": [1024, 1024, 64, 64], "S": [0, 0, 49 << 10, (49 << 10) + 1], "BLOCKS_PER_SM": [2, 3, 2, 2]},
     [True, False, True, False]),
    (rules.registers_fit("sums", R, T),
     {"R": [128, 129, 64, 65], "T": [256] * 4, "BLOCKS_PER_SM": [2, 2, 4, 4]}, [True, False, True, False]),
    (rules.block_registers_fit("sums", R, T), {"R": [64, 65, 255, 256], "T": [1024, 1024, 32, 32]},
     [True, False, True, False]),
    (of_gemm.residency_limits_registers(T), {"T": [64, 64, 512], "BLOCKS_PER_SM": [1, 2, 2]},
     [True, False, True]),
    (of_gemm.enough_warps(T, 8), {"T": [128, 128], "BLOCKS_PER_SM": [1, 2]}, [False, True]),
    (of_gemm.blocks_run_at_once(), {"BLOCKS": [0, 20, 10], "BLOCKS_PER_SM": [1, 2, 2]}, [True, True, False]),
    (rules.copy_at_most_16_bytes("V", "W"), {"V": [4, 4, 8], "W": [4, 8, 4]}, [True, False, False]),
    (rules.copy_at_most_16_bytes("V"), {"problem": DOUBLE, "V": [2, 4]}, [True, False]),
    (rules.asynchronous_copies("STAGES"), {"STAGES": [2, 3]}, [True, True]),
    (rules.asynchronous_copies("STAGES"), {"device": OLD, "STAGES": [0, 2]}, [True, False]),
    (rules.access_holds_an_element(), {"problem": DOUBLE, "ACCESS_BYTES": [4, 8]}, [False, True]),
    (of_gemm.divisible_lines({"A": "V", "B": "W"}, lambda p, c: (p.k, p.n + 2)),
     {"V": [4, 16, 4], "W": [2, 2, 4]}, [True, False, False]),
    (of_gemm.offsets_fit_32_bits(R, "m", "n", "k"), {"problem": HUGE, "R": [3, 4]}, [True, False]),
    (of_gemm.offsets_fit_32_bits(R, "m", "k"), {"problem": HUGE, "R": [4]}, [True]),
    (rules.at_most_cores(), {"device": CPU, "THREADS": [1, 4, 5]}, [True, True, False]),
    (rules.at_most_cores("JOBS"), {"device": DeviceInfo("unknown", "cpu"), "JOBS": [1, 2]}, [True, False]),
    (rules.work_for_each_thread("a row", lambda p, c: p.m), {"THREADS": [100, 101]}, [True, False]),
    (rules.vectors_as_wide_as_the_cpu(), {"device": CPU, "WIDTH": [4, 8, 16]}, [False, True, False]),
    (rules.vectors_as_wide_as_the_cpu("W"), {"device": CPU, "problem": DOUBLE, "W": [4]}, [True]),
)  # fmt: skip


@pytest.mark.parametrize(("rule", "asked", "expected"), KEPT, ids=lambda given: getattr(given, "sentence", ""))
def test_a_rule_keeps_what_the_device_can(rule: Constraint, asked: Any, expected: list[bool]) -> None:
    assert kept(rule, **asked) == expected
