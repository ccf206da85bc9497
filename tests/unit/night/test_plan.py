"""Plans: what they hold, how grids are laid out, and what is said of a plan that is wrong."""

from collections.abc import Callable
from datetime import datetime, time
from pathlib import Path

import pytest
from fixtures.fake_device import copy_toy
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import InputError, PlanError
from tuner.night.plan import DEFAULT_SECONDS, Plan, clock_time, read_plan, seconds_until

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
GEMM = '[[problems]]\noperation = "gemm"\n'
VALID = GEMM + "squares = [8]\n"
SURVEY = '[[surveys]]\noperation = "gemm"\n'

Read = Callable[[str], Plan]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Reads a plan given as text, beside a user's own kernel file, the toy's."""
    copy_toy(tmp_path)

    def write_and_read(text: str) -> Plan:
        path = tmp_path / "plan.toml"
        path.write_text(text, encoding="utf-8")
        return read_plan(path)

    return write_and_read


def shapes(plan: Plan) -> list[tuple[int, ...]]:
    """Sizes of every item, in order."""
    return [tuple(item.problem.dims.values()) for item in plan.items]


def test_each_way_to_give_shapes(read: Read) -> None:
    ways = (
        "shape = [1, 2, 3]", "shapes = [[4, 5, 6], [7, 8, 9]]", "squares = [10, 11]",
        "m = [1, 2]\nn = 3\nk = [4, 5]", "set = {m = [15], n = 16, k = 17}",
    )  # fmt: skip
    assert shapes(read("".join(f"{GEMM}{way}\n" for way in ways))) == [
        (1, 2, 3), (4, 5, 6), (7, 8, 9), (10, 10, 10), (11, 11, 11), (1, 3, 4), (1, 3, 5),
        (2, 3, 4), (2, 3, 5), (15, 16, 17),
    ]  # fmt: skip


def test_a_problem_without_a_layout_has_the_first_of_its_dtype(read: Read) -> None:
    plan = read(f"{GEMM}squares = [8]\ndtypes = ['float32', 'float8_e4m3fn']\n")
    assert [item.problem.layout for item in plan.items] == ["nn", "nt"]


def test_defaults_give_way_to_the_problem(read: Read) -> None:
    plan = read(
        "until = '06:30'\nseconds = 3600\n"
        "[defaults]\ndevice = 'cpu'\nregime = 'hot'\nlayout = 'nt'\nseconds = 5\ntrials = 7\n"
        "kernels = ['naive']\n"
        f"{GEMM}squares = [8]\n"
        f"{GEMM}squares = [8]\nregime = 'cold'\nlayouts = ['nn', 'tt']\nseconds = 9.5\ntrials = 3\n"
        "kernels = ['blocked', 'naive']\n"
    )
    assert (plan.until, plan.seconds) == (time(6, 30), 3600)
    assert (plan.defaults.device, plan.defaults.sampler) == ("cpu", "tile")
    first, *rest = plan.items
    assert (first.regime, first.problem.layout, first.seconds, first.trials) == ("hot", "nt", 5, 7)
    assert first.kernels == ("naive",)
    assert [item.problem.layout for item in rest] == ["nn", "tt"]
    assert {(item.regime, item.seconds, item.trials, item.kernels) for item in rest} == {
        ("cold", 9.5, 3, ("blocked", "naive"))
    }


def test_without_any_budget_a_problem_gets_the_default(read: Read) -> None:
    for budget, expected in (("", (DEFAULT_SECONDS, None)), ("trials = 4", (None, 4))):
        item = read(f"{GEMM}squares = [8]\n{budget}\n").items[0]
        assert (item.seconds, item.trials) == expected


def test_objectives_limits_and_epilogues_make_problems_of_their_own(read: Read) -> None:
    defaults = "objective = 'energy,time'\nerror_limit = 1.5\nepilogue = 'relu'\nbits = 'keep'\n"
    plan = read(
        f"[defaults]\n{defaults}{GEMM}squares = [8]\n"
        f"{GEMM}squares = [8]\nobjective = ['error', 'time']\nerror_limit = inf\nbits = 'library'\n"
        f"{GEMM}squares = [8]\nepilogues = ['none', 'gelu+bias-col']\n"
    )
    assert [(item.objectives, item.error_limit, item.bits, item.problem.epilogue) for item in plan.items] == [
        (("time", "energy"), 1.5, "keep", "relu"), (("time", "error"), None, "library", "relu"),
        (("time", "energy"), 1.5, "keep", ""), (("time", "energy"), 1.5, "keep", "bias-col+gelu"),
    ]  # fmt: skip
    assert len({item.key for item in plan.items}) == 4


def test_a_users_own_file_counts_from_the_plan(read: Read, tmp_path: Path) -> None:
    plan = read('[[problems]]\nfile = "toy.py"\nset = {n = [1000, 2000]}\ndtypes = ["float64", "float32"]\n')
    assert {item.file for item in plan.items} == {(tmp_path / "toy.py").resolve()}
    assert [(item.problem.n, item.problem.dtype) for item in plan.items] == [
        (1000, "float64"), (1000, "float32"), (2000, "float64"), (2000, "float32"),
    ]  # fmt: skip
    assert [kernel.name for kernel in plan.items[0].catalogue.of("toy", "cpu")] == ["chunks"]


def test_the_same_problem_twice_is_tuned_once_with_the_first_budget(read: Read) -> None:
    text = GEMM + "squares = [8, 8]\nseconds = 1\n" + GEMM + "shape = [8, 8, 8]\nseconds = 2\n"
    other_kernels = GEMM + 'squares = [8]\nkernels = ["naive"]\n'
    plan = read(text + other_kernels)
    assert [(item.seconds, item.kernels) for item in plan.items] == [(1, ()), (DEFAULT_SECONDS, ("naive",))]


TOP_LEVEL_MISTAKES = [
    ("", 1, r"a plan has one or more \[\[problems\]\] tables, got none under the key problems"),
    ("seconds = 1\nproblems = [5]", 2, r"problems holds tables, \[\[problems\]\], got 5"),
    ("untill = 3\n" + VALID, 1, r"unknown key 'untill'; did you mean until\?"),
    ('until = "24:00"\n' + VALID, 1, r"until is a time of day as \"HH:MM\", 00:00 to 23:59, got '24:00'"),
    ("[defaults]\nsampler = 'tyle'\n" + VALID, 2, r"unknown sampler 'tyle'; did you mean tile"),
    ("[defaults]\nobjective = 'time,power'\n" + VALID, 2, r"objective: unknown objective 'power'"),
    (f"{GEMM}invariant = 'k'\nsquares = [8]", 3, r"invariant: --invariant takes a dim .* rows by, got 'k'"),
    ("[defaults]\nerror_limit = 0.9\n" + VALID, 2, r"error_limit is a number of 1 or more, .*, got 0.9"),
    (
        f"[defaults]\nsampler = 'tpe'\n{GEMM}objective = 'time,error'\nsquares = [8]",
        5,
        r"objective: several objectives need",
    ),
    ("\n\nseconds 3", 3, r"a plan must be valid TOML: .*; correct that line"),
]
#: These follow the two lines of SURVEY.
SURVEY_MISTAKES = [
    ('layouts = ["xx"]', 3, ".*xx"),
    ("most = {q = 9}", 3, ".*q"),
    ("drawn = false", 3, "drawn = false goes with shapes"),
    ('shapes = "none.toml"', 3, "shapes: .*cannot be read"),
]
#: These follow the two lines of GEMM.
PROBLEM_MISTAKES = [
    ("", 1, r"a problem has one of shape, shapes, squares, set or m n k by name, got none; add one"),
    ("shapes = [[1, 2, 3],\n  [1, 2.0, 3]]", 3, r"shapes is a list of shapes, .*, got 2.0"),
    ("shape = [8, 8]", 3, "shape: gemm takes M N K: 3 dims, got 2"),
    ("m = 1\nn = -2\nk = 3", 4, r"n is a whole number of 1 or more, or a list of them, got -2"),
    ("set = {m = 1, n = 2, q = 3}", 3, r"set: unknown dim of gemm 'q'"),
    ("squars = [8]", 3, r"unknown key 'squars'; did you mean .*squares"),
    ("squares = [8]\nm = 3", 4, r"a problem has one of .*, got squares and m; keep one"),
    ("squares = [8]\nlayout = 'nn'\nlayouts = ['nt']", 5, r"layout and layouts exclude each other"),
    ("squares = [8]\nepilogue = 'gellu'", 4, r"epilogue: unknown part of an epilogue 'gellu'"),
    ("squares = [8]\nlayouts = ['nn', 'xx']", 4, r"unknown layout 'xx'; choose one of: nn, nt, tn, tt"),
    ("squares = [8]\nkernels = ['blockd']", 4, r"unknown kernel of gemm 'blockd'; did you mean blocked"),
    ("m = 100_000_000_000\nn = 64\nk = 64", 1, r"m <= 2147483647 must hold .*, got m=100000000000"),
    (f"m = {[1] * 400}\nn = {[1] * 400}\nk = 1", 3, r"a plan has at most 100000 problems, got 160000"),
]
SOURCE_MISTAKES = [
    ("seconds = 3", 1, r"operation: a problem has operation or file, got neither; add one"),
    ("file = 'none.py'", 2, r"file: a kernel file must exist, found none at .*none\.py"),
    ("file = 'toy.py'\noperation = 'gemm'", 3, r"operation: unknown operation 'gemm'; choose one of: toy"),
]


@pytest.mark.parametrize(("text", "line", "message"), [
    *TOP_LEVEL_MISTAKES,
    *((SURVEY + rest, line, message) for rest, line, message in SURVEY_MISTAKES),
    *((GEMM + rest, line, message) for rest, line, message in PROBLEM_MISTAKES),
    *((f"[[problems]]\n{rest}\nsquares = [8]", line, message) for rest, line, message in SOURCE_MISTAKES),
])  # fmt: skip
def test_a_wrong_plan_is_told_by_file_line_and_key(read: Read, text: str, line: int, message: str) -> None:
    with pytest.raises(PlanError, match=rf"plan\.toml:{line}: {message}"):
        read(text)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"missing\.toml cannot be read: No such file or directory; check"):
        read_plan(tmp_path / "missing.toml")
    with pytest.raises(PlanError, match=r"cannot be read: Is a directory"):
        read_plan(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanError, match=r"binary\.toml cannot be read: it is not UTF-8 text"):
        read_plan(tmp_path / "binary.toml")


#: Ladder plans and the lessons of their steps are files of another kind.
NIGHTS = sorted(
    path.name for path in CONFIGS.glob("*.toml") if not path.name.startswith(("ladder-", "lessons."))
)


@pytest.mark.parametrize("name", NIGHTS)
def test_shipped_plans_are_valid(name: str) -> None:
    plan = read_plan(CONFIGS / name)
    assert plan.items
    budget = sum(item.seconds or 0 for item in plan.items)
    assert budget <= (plan.seconds or 24 * 3600)


@pytest.mark.parametrize("text", ["", "6:30", "24:00", "12:60", "06:30:00", "06:30\n", "٠٦:٣٠"])
def test_other_clock_times_are_refused(text: str) -> None:
    assert clock_time("06:30") == time(6, 30)
    with pytest.raises(InputError, match=r'a time of day is "HH:MM", 00:00 to 23:59, got'):
        clock_time(text)


@given(st.times(), st.datetimes(min_value=datetime(2000, 1, 1), max_value=datetime(2100, 1, 1)))
def test_the_next_such_time_is_within_a_day(clock: time, now: datetime) -> None:
    left_s = seconds_until(clock, now)
    # A night in which clocks are put back is an hour longer.
    assert 0 < left_s <= 25 * 3600
    arrived = datetime.fromtimestamp(now.timestamp() + left_s)
    assert abs((arrived - datetime.combine(arrived.date(), clock)).total_seconds()) <= 3600 + 1e-3


def test_a_plan_may_have_surveys_alone(tmp_path: Path) -> None:
    shapes = tmp_path / "shapes.toml"
    shapes.write_text(GEMM + "squares = [64, 128]\n" + SURVEY + 'shapes = "shapes.toml"\n')
    plan = tmp_path / "plan.toml"
    plan.write_text(
        '[defaults]\nregime = "hot"\n' + SURVEY + 'seconds = 20\nshapes = "shapes.toml"\nlayouts = ["nn"]\n'
        "most = {m = 100}\nconfigs = 9\nseed = 3\n" + SURVEY + 'regime = "cold"\n'
    )
    found = read_plan(plan)
    assert found.items == ()
    first, second = found.surveys
    assert (first.table.seconds, first.regime, first.table.configs, first.table.seed) == (20, "hot", 9, 3)
    assert (first.table.layouts, first.table.most, first.table.drawn) == (["nn"], {"m": 100}, True)
    assert [problem.dims["m"] for problem in first.problems] == [64, 128]
    assert (second.table.seconds, second.regime, second.problems) == (600, "cold", ())


def test_of_many_mistakes_the_first_are_told(read: Read) -> None:
    with pytest.raises(PlanError, match="unknown key 'k0'") as caught:
        read("\n".join(f"k{number} = 1" for number in range(1000)))
    assert str(caught.value).count("unknown key") == 20


def test_mistakes_of_all_tables_are_told_at_once_in_the_order_of_lines(read: Read) -> None:
    with pytest.raises(PlanError, match=r"plan\.toml:1: unknown key 'untill'") as told:
        read(
            "untill = 3\n[defaults]\ndevice = 'gpu7'\n\n"
            f"{GEMM}squares = [0]\nlayout = 'xx'\n{GEMM}squares = [8]\nlayout = 'xx'\ndtype = 'f'\n"
            f"{GEMM}squars = 3\n"
            "[[surveys]]\noperation = 'gemn'\n[[problems]]\noperation = 'gemn'\nsquares = [0]\n"
        )
    error = told.value
    places = [line.partition(": ")[0].partition(":")[2] for line in str(error).splitlines()]
    assert places == ["1", "3", "7", "13", "16", "18", "20", "21"], str(error)
    assert (error.line, error.key) == (1, "untill")
    assert "plan.toml:3: device is cpu, cuda or cuda:N, or a model for a fleet, got 'gpu7'" in str(error)
