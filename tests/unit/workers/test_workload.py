"""Arrays of a problem, drawn inputs, and the check of outputs against the float64 reference."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy
import pytest
from fixtures.fake_device import BOARD, TOY
from hypothesis import given, settings
from hypothesis import strategies as st
from tuner.devices.fake.device import FakeDevice

from tuner.declare import catalogue
from tuner.declare.catalogue import builtin, from_file
from tuner.declare.problem import Operation, Problem, Tensor, Work
from tuner.devices.comparing import fingerprint
from tuner.devices.protocol import GUARD_BYTES
from tuner.workers.inputs import FIXED_KINDS, Inputs, bits, infinity_of
from tuner.workers.workload import Workload

DEVICE = FakeDevice({"info": BOARD})
TOYS = from_file(TOY).operation("toy")
GEMM = builtin().operation("gemm")


def toy(n: int = 1000, seed: int = 1, dtype: str = "float32") -> Workload:
    return Workload(DEVICE, TOYS.problem({"n": n}, dtype=dtype), seed)


def right(workload: Workload) -> None:
    """Writes the references as the outputs."""
    for name, reference in workload.references.items():
        workload.arrays[name][...] = reference


def whole(workload: Workload, name: str) -> Any:
    """An output with its guards, as bytes."""
    base = workload.arrays[name]
    while base.base is not None:
        base = base.base
    return base


def test_the_right_answer_passes_and_none_does_not() -> None:
    workload = toy()
    assert workload.check()[1] == "left elements unwritten, or computed NaN"
    right(workload)
    error, wrong = workload.check()
    assert wrong == ""
    assert 0 < error.bound_ratio < 0.2
    assert 0 < error.rms_rel <= error.max_rel < 1e-6


@pytest.mark.parametrize("spoil", ["pool", "first", "second"])
def test_what_results_are_held_against_is_known_to_be_sound_or_not(spoil: str) -> None:
    workload = toy()
    references = {"first": workload.first.references["y"], "second": workload.second.references["y"]}
    assert workload.sound()
    if spoil == "pool":
        # A kernel finds it by writing far outside of its arrays.
        workload.inputs._pools["x"].numbers[70] ^= 1
    else:
        references[spoil][5] = 0.0
    assert not workload.sound()


def test_a_reference_that_is_a_view_of_its_input_stays_what_it_was() -> None:
    transposed = replace(
        TOYS,
        tensors=lambda p: (Tensor("x", (p.n, 3), "float64"), Tensor("y", (3, p.n), "float64", output=True)),
        reference=lambda xp, p, arrays: arrays["x"].T,
    )
    workload = Workload(DEVICE, transposed.problem({"n": 7}), 1)
    before = workload.references["y"].copy()
    workload.inputs.shuffle()
    assert (workload.references["y"] == before).all()


@settings(max_examples=30)
@given(st.integers(0, 999), st.sampled_from(["nan", "inf", "off", "zero", "skip"]))
def test_a_single_wrong_element_is_found(place: int, how: str) -> None:
    workload = toy()
    right(workload)
    y = workload.arrays["y"]
    y[place] = {"nan": math.nan, "inf": math.inf, "off": y[place] * 1.0001, "zero": 0.0, "skip": math.nan}[how]
    assert workload.check()[1] != ""


@pytest.mark.parametrize("place", [0, GUARD_BYTES - 1, -GUARD_BYTES, -1])
def test_a_byte_outside_is_found(place: int) -> None:
    workload = toy()
    right(workload)
    whole(workload, "y")[place] = 0
    assert workload.check()[1] == "wrote outside of y"


# --- inputs ---------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.sampled_from(["float16", "bfloat16", "float32", "float64", "int32", "int64", "uint8"]), st.data())
def test_a_single_bit_of_an_input_that_changes_is_found(dtype: str, data: st.DataObject) -> None:
    workload = Workload(DEVICE, summed(dtype), 1)
    right(workload)
    assert workload.check()[1] == ""
    cells = bits(workload.arrays["x"])
    cells[data.draw(st.integers(0, cells.size - 1))] ^= 1 << data.draw(st.integers(0, 8 * cells.itemsize - 1))
    assert workload.check()[1] == "wrote into the input x, which kernels only read"
    workload.begin(workload.first)
    right(workload)
    assert workload.check()[1] == ""


def summed(dtype: str, n: int = 200) -> Problem:
    """y = x + x of that dtype, in float64."""

    def tensors(p: Problem) -> tuple[Tensor, ...]:
        return Tensor("x", (p.n,), dtype), Tensor("y", (p.n,), "float64", output=True)

    def reference(xp: Any, p: Problem, arrays: Any) -> Any:
        return 2 * arrays["x"].astype(xp.float64)

    return replace(TOYS, tensors=tensors, reference=reference).problem({"n": n})


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64", "uint8"])
def test_inputs_are_placed_anew_in_the_same_memory(dtype: str) -> None:
    workload = Workload(DEVICE, summed(dtype), 1)
    inputs, x = workload.inputs, workload.arrays["x"]
    first, address, references = x.copy(), x.ctypes.data, workload.references["y"]
    seen = {first.tobytes()}
    for _ in range(5):
        inputs.shuffle()
        assert workload.touched() == ""
        seen.add(x.tobytes())
    workload.begin(workload.second)
    assert (workload.references["y"] == 2 * x.astype(float)).all()
    assert not (workload.references["y"] == references).all()
    seen.add(x.tobytes())
    assert len(seen) == 7
    workload.begin(workload.first)
    assert (x == first).all()
    assert workload.arrays["x"] is x
    assert x.ctypes.data == address
    inputs.flip()
    [place] = numpy.flatnonzero(x != first)
    was, now = first[place].item(), x[place].item()
    assert now == -was if dtype.startswith("float") else abs(now - was) == 1
    assert workload.touched() == "", "it is turned back"


# --- tolerance ----------------------------------------------------------------------------------------------


def gemm(m: int, n: int, k: int, seed: int) -> Workload:
    return Workload(DEVICE, GEMM.problem({"m": m, "n": n, "k": k}), seed)


def split(a: Any, b: Any, order: Any, parts: int) -> Any:
    """Sums of float32 products in some order, in that many parts."""
    total = numpy.zeros((a.shape[0], b.shape[1]), numpy.float32)
    for chunk in numpy.array_split(order, parts):
        part = numpy.zeros_like(total)
        for p in chunk:
            part += numpy.multiply.outer(a[:, p], b[p])
        total += part
    return total


@settings(max_examples=25)
@given(st.integers(1, 400), st.integers(1, 16), st.integers(0, 2**32 - 1))
def test_float32_sums_in_any_order_and_any_number_of_parts_pass(k: int, parts: int, seed: int) -> None:
    workload = gemm(8, 9, k, seed)
    order = numpy.random.default_rng(seed).permutation(k)
    workload.arrays["c"][...] = split(workload.arrays["a"], workload.arrays["b"], order, parts)
    assert workload.check()[1] == ""


# --- several outputs, other dtypes ----------------------------------------------------------------------------


def two_outputs() -> Problem:
    def tensors(p: Problem) -> tuple[Tensor, ...]:
        return (
            Tensor("x", (p.n,), "int32"),
            Tensor("doubled", (p.n,), "int32", output=True),
            Tensor("halved", (p.n,), "float32", output=True),
        )

    def reference(xp: Any, p: Problem, arrays: Any) -> Any:
        x = arrays["x"].astype(xp.float64)
        return {"doubled": 2 * x, "halved": x / 2}

    operation = Operation("both", ("n",), tensors, lambda p: Work(1, 1), reference)
    return operation.problem({"n": 50})


def test_several_outputs_are_all_checked() -> None:
    workload = Workload(DEVICE, two_outputs(), 3)
    right(workload)
    assert workload.check()[1] == ""
    workload.arrays["halved"][7] += 1
    assert "rounding" in workload.check()[1]
    right(workload)
    workload.arrays["doubled"][0] += 1
    assert workload.check()[1] != "", "whole numbers are exact"
    right(workload)
    whole(workload, "doubled")[0] = 1
    assert workload.check()[1] == "wrote outside of doubled"


def test_a_single_sum_that_is_near_zero_by_chance_may_round_like_others() -> None:
    problem = GEMM.problem({"m": 1, "n": 1, "k": 1031})
    least = 1.0
    for seed in (85, 99, 1, 2, 3):  # the first two have such a sum
        workload = Workload(DEVICE, problem, seed)
        a, b = workload.arrays["a"][0], workload.arrays["b"][:, 0]
        total = numpy.cumsum(a * b, dtype=numpy.float32)[-1]  # one chain
        workload.arrays["c"][...] = total
        assert workload.check()[1] == ""
        least = min(least, abs(float(workload.references["c"][0, 0])) / math.sqrt(1031))
    assert least < 0.02  # such chance was among them


# --- 16-bit results of wider sums -----------------------------------------------------------------------------


def halves(dtype: str, k: int = 512) -> Workload:
    return Workload(DEVICE, GEMM.problem({"m": 40, "n": 30, "k": k}, dtype), 1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("k", [1, 64, 4096])
def test_sums_in_float32_that_are_rounded_once_are_right(dtype: str, k: int) -> None:
    workload = halves(dtype, k)
    a, b = (workload.arrays[name].astype("float32") for name in "ab")
    workload.arrays["c"][...] = a @ b
    error, wrong = workload.check()
    assert wrong == ""
    assert error.bound_ratio > 0.1, "the tolerance is of the size of the rounding"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_an_element_off_by_three_units_of_its_last_place_is_wrong(dtype: str) -> None:
    workload = halves(dtype)
    right(workload)
    cells = bits(workload.arrays["c"])
    largest = int(abs(workload.references["c"]).argmax())
    cells[largest] += 3
    assert "times what rounding explains" in workload.check()[1]


def inputs(draws: Callable[..., Any] | None, fixed: bool = False, n: int = 100) -> Inputs:
    operation = replace(catalogue.from_file(TOY).operation("toy"), draws=draws, fixed=fixed)
    problem: Problem = operation.problem({"n": n})
    return Inputs(numpy, problem, numpy.random.default_rng(1), 1)


def changed(inputs: Inputs) -> list[str]:
    """Names of the inputs that differ from what was placed there."""
    return [name for name, (cells, placed) in inputs.pairs().items() if (cells != placed).any()]


def test_own_numbers_are_drawn_anew_and_never_flipped() -> None:
    own = inputs(lambda p, tensor, generator, count: generator.choice([3.0, 5.0], count))
    first = own.arrays["x"].copy()
    assert set(first) == {3.0, 5.0}
    own.shuffle()
    assert set(own.arrays["x"]) == {3.0, 5.0}
    assert (own.arrays["x"] != first).any()
    own.flip()
    assert set(own.arrays["x"]) == {3.0, 5.0}
    assert changed(own) == []


def test_whole_draws_are_never_cut() -> None:
    own = inputs(lambda p, tensor, generator, count: [generator.permutation(p.n) for _ in range(5)])
    found = []
    for place in (lambda: None, own.shuffle, own.flip, lambda: own.place_fixed("wide")):
        place()
        found.append(own.arrays["x"].tolist())
    assert all(sorted(numbers) == list(range(100)) for numbers in found)
    assert len({tuple(numbers) for numbers in found}) == 3


def test_fixed_inputs_stay_as_they_are_and_writes_into_them_are_found() -> None:
    own = inputs(lambda p, tensor, generator, count: numpy.resize(numpy.arange(p.n), count), fixed=True)
    own.shuffle()
    assert own.arrays["x"].tolist() == list(range(100))
    own.arrays["x"][7] = 0
    assert changed(own) == ["x"]


@given(
    st.sampled_from(["float16", "bfloat16", "float32", "float64", "int32", "uint8"]), st.integers(1, 200_000),
    st.integers(1, 200_000), st.sampled_from(FIXED_KINDS),
)  # fmt: skip
def test_fixed_inputs_are_the_same_for_any_size(dtype: str, n: int, other: int, kind: str) -> None:
    operation = replace(TOYS, dtypes=(dtype,))
    made = []
    for size in (n, other):
        placed = Inputs(numpy, operation.problem({"n": size}), numpy.random.default_rng(n), n)
        placed.place_fixed(kind)
        made.append(bits(placed.arrays["x"])[: min(n, other)].copy())
    assert (made[0] == made[1]).all()


@given(st.integers(1, 100_000), st.integers(0), st.integers(0), st.integers(0, 31))
def test_a_fingerprint_tells_any_bit_but_no_nans_apart(n: int, at: int, more: int, bit: int) -> None:
    values = numpy.random.default_rng(n).standard_normal(n, "float32")
    cells, place, infinity = bits(values), at % n, infinity_of("float32")
    before = fingerprint(numpy, cells, infinity)
    cells[place] ^= numpy.uint32(1 << bit)
    assert numpy.isnan(values[place]) or fingerprint(numpy, cells, infinity) != before
    nans = [fingerprint(numpy, cells, infinity) for cells[place] in (0x7FC00000, 0xFFC00001 + more % 1000)]
    assert nans[0] == nans[1] != before
