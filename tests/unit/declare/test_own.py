"""A declaration is written once for what is in it, and loads as any other file."""

from dataclasses import replace
from pathlib import Path

import numpy

from tuner.declare import catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.declare.own import OwnKernel, Reference
from tuner.declare.shapes import KernelArgument, Sizes
from tuner.declare.space import Space

ADD = OwnKernel(
    "add",
    "cuda",
    'extern "C" __global__ void add(int n, float* out, const float* a) {}',
    (
        KernelArgument("n", "int32", None, 100),
        KernelArgument("out", "float32", (100,), 0, True),
        KernelArgument("a", "float32", (100,)),
    ),
    Sizes({"n": 100}, {"out": ("n",), "a": ("n",)}, {}),
    {"BLOCK": (32, 64, 2048)},
    Reference("def right(a):\n    return a + 1\n", "right", ("a",)),
    rules=("BLOCK <= 2 * n",),
    launch={"grid": ("ceil_div(n, BLOCK)",), "block": ("BLOCK",), "shared_bytes": ("4 * BLOCK",)},
    terms="2",
)
DEVICE = DeviceInfo("board", "cuda", max_threads_per_block=1024, shared_bytes_per_block=200)


def test_it_says_what_a_file_by_hand_would(tmp_path: Path) -> None:
    file = ADD.write(tmp_path)
    found = catalogue.from_file(file)
    problem = found.operation("add").problem({"n": 100})
    assert [(each.name, each.shape, each.output) for each in problem.tensors] == [
        ("out", (100,), True), ("a", (100,), False),
    ]  # fmt: skip
    assert (problem.work.flops, problem.work.bytes, problem.operation.terms(problem)) == (0, 800, 2)
    right = problem.operation.reference(numpy, problem, {"a": numpy.ones(100, "float32")})["out"]
    assert (right.dtype, right[0]) == (numpy.float64, 2)
    [kernel] = found.of("add")
    legal = Space.build(kernel.parameters, kernel.constraints, problem, DEVICE)
    assert [config.BLOCK for config in legal] == [32]
    launch = kernel.launched(problem, legal[0])
    assert (launch.grid, launch.block, launch.shared_bytes) == ((4,), (32,), 128)
    # Its arguments are in another order than arrays first.
    assert launch.steps[0].arguments == ("n", "out", "a")
    kernel.check_entry()


def test_the_same_kernel_has_the_same_file(tmp_path: Path) -> None:
    first = ADD.write(tmp_path)
    assert ADD.write(tmp_path) == first
    assert replace(ADD, arrays={"a": numpy.zeros(100, "float32")}).write(tmp_path) != first
    assert replace(ADD, rules=()).write(tmp_path) != first
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_an_answer_holds_for_its_inputs_and_sizes_alone(tmp_path: Path) -> None:
    arrays = {"a": numpy.arange(100, dtype="float32"), "answer:out": numpy.arange(100.0) + 1}
    fixed = replace(ADD, reference=None, inputs="given", arrays=arrays)
    found = catalogue.from_file(fixed.write(tmp_path))
    operation = found.operation("add")
    problem = operation.problem({"n": 100})
    assert operation.fixed
    drawn = operation.draws(problem, problem.inputs[0], None, 150)  # type: ignore[misc]
    assert drawn[:101].tolist() == [*range(100), 0]
    assert operation.reference(numpy, problem, {})["out"].tolist() == list(range(1, 101))
    [kernel] = found.of("add")
    for n, legal in ((100, 1), (99, 0)):
        space = Space.build(kernel.parameters, kernel.constraints, operation.problem({"n": n}), DEVICE)
        assert len(space) == legal


def test_sizes_that_are_tied_stay_equal_and_names_may_be_those_of_python(tmp_path: Path) -> None:
    sizes = Sizes({"shape": 8}, {"out": ("shape", "shape"), "a": ("shape", "shape")}, {"n": "shape"})
    numbers = {"shape": ("int64", 8), "n": ("int64", 8), "lowest": ("float64", float("-inf"))}
    arguments = [KernelArgument(name, dtype, None, value) for name, (dtype, value) in numbers.items()]
    own = replace(
        ADD, arguments=(*ADD.arguments[1:], *arguments), sizes=sizes, rules=("BLOCK <= n * shape",),
        parameters={"BLOCK": (32, 64), "items": (1, 2)}, launch={"grid": ("n",), "block": ("BLOCK * items",)},
    )  # fmt: skip
    found = catalogue.from_file(own.write(tmp_path))
    problem = found.operation("add").problem({"shape": 7})
    assert [tensor.shape for tensor in problem.tensors] == [(7, 7), (7, 7)]
    assert [scalar.value for scalar in problem.scalars] == [7, 7, float("-inf")]
    [kernel] = found.of("add")
    legal = Space.build(kernel.parameters, kernel.constraints, problem, DEVICE)
    assert [tuple(config.values()) for config in legal] == [(32, 1), (32, 2)]
    launch = kernel.launched(problem, legal[1])
    assert (launch.grid, launch.block, launch.is_single) == ((7,), (64,), True)
