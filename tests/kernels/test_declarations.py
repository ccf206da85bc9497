"""What every kernel declares, built in or in examples/: parameters, constraints, launch, defaults."""

import ast
import math
import random
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from gpu_models import GPUS, T4
from sampling import MEANT_FOR, SMALL, catalogues, covering, kernels, name_of, right_space, space, usual_problem

from tuner.declare.folders import kernels_folder
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel, render
from tuner.declare.problem import Operation, Problem
from tuner.declare.space import Config

CPUS = (
    DeviceInfo(name="two cores", kind="cpu", cores=2, vector_bytes=32, l1_bytes=32 << 10, l2_bytes=4 << 20),
    DeviceInfo(name="64 cores", kind="cpu", cores=64, vector_bytes=64, l1_bytes=48 << 10, l2_bytes=256 << 20),
)
CASES = kernels()
#: Sizes of a dim that let each constraint on problems show itself.
SIZES = (1, 7, 64, 1000, 30_000)
every_kernel = pytest.mark.parametrize(("operation", "kernel"), CASES, ids=name_of)


def devices(kernel: Kernel) -> tuple[DeviceInfo, ...]:
    return GPUS if kernel.kind == "cuda" else CPUS


def problems(operation: Operation) -> list[Problem]:
    """The usual one in every layout, and small, odd and lopsided ones."""
    draw = random.Random(1)
    shapes = [{dim: draw.choice(SIZES) for dim in operation.dims} for _ in range(8)]
    shapes += [dict.fromkeys(operation.dims, size) for size in (1, 7, 64)]
    drawn = [operation.problem(shape, layout=draw.choice(operation.layouts)) for shape in shapes]
    other_dtypes = [usual_problem(operation, dtype=dtype) for dtype in operation.dtypes[1:]]
    return [*(usual_problem(operation, layout) for layout in operation.layouts), *drawn, *other_dtypes]


def raw_columns(kernel: Kernel, count: int = 20_000) -> SimpleNamespace:
    """So many combinations of values as NumPy arrays, legal or not."""
    rng = np.random.default_rng(3)
    return SimpleNamespace(**{own.name: rng.choice(np.array(own.values), count) for own in kernel.parameters})


@every_kernel
def test_each_constraint_rejects_something(operation: Operation, kernel: Kernel) -> None:
    columns, count = raw_columns(kernel), 20_000
    huge = operation.problem(dict.fromkeys(operation.dims, 1 << 30))
    # The usual problem in all dtypes that the project declares for the operation, and with an epilogue.
    declared = catalogues()[0].operations.get(operation.name, operation)
    usual = [usual_problem(declared, dtype=dtype) for dtype in declared.dtypes]
    plain = [each for each in usual if each.dtype in declared.epilogues]
    asked = [*problems(operation), huge, *usual]
    asked += [replace(each, epilogue=one) for each in plain for one in ("bias-col", "bias-row")]
    for constraint in kernel.constraints:
        rejects = any(
            not np.all(np.broadcast_to(constraint.rule(problem, device, columns), count))
            for problem in asked
            for device in (*devices(kernel), T4)
        )
        assert rejects, f"{kernel.name}: no config here is rejected by: {constraint.sentence}"


@every_kernel
def test_constraints_agree_on_scalars_and_arrays(operation: Operation, kernel: Kernel) -> None:
    count = 200
    columns = raw_columns(kernel, count)
    names = [each.name for each in kernel.parameters]
    for problem in problems(operation)[:6]:
        for constraint in kernel.constraints:
            together = np.broadcast_to(constraint.rule(problem, devices(kernel)[0], columns), count)
            for index in range(count):
                one = SimpleNamespace(**{name: getattr(columns, name)[index].item() for name in names})
                assert bool(constraint.rule(problem, devices(kernel)[0], one)) == bool(together[index])


@every_kernel
def test_some_config_is_legal_everywhere_and_fits_the_device(operation: Operation, kernel: Kernel) -> None:
    for problem in [*problems(operation), usual_problem(operation, kernel=kernel.name)]:
        for device in devices(kernel):
            legal = space(kernel, problem, device)
            some = right_space(kernel, problem, device) if kernel.name in MEANT_FOR else legal
            if kernel.name in SMALL and not len(some):
                continue
            assert len(some), f"nothing is legal for {problem} on {device.name}"
            for config in covering(legal, seed=5) if kernel.target == "cuda" else ():
                assert_within(kernel, problem, config, device)


def assert_within(kernel: Kernel, problem: Problem, config: Config, device: DeviceInfo) -> None:
    """The launch is one that the device takes, and has the blocks that the declared tiles say."""
    launch = render(kernel, problem, config).launch
    grid, block = [*launch.grid, 1, 1][:3], [*launch.block, 1, 1][:3]
    assert 1 <= grid[0] < 2**31
    assert all(1 <= size <= 65_535 for size in grid[1:])
    assert 1 <= np.prod(block) <= device.max_threads_per_block
    assert block[2] <= 64
    assert 0 <= launch.shared_bytes <= device.shared_bytes_per_block
    tiles = kernel.tiles(problem, config) if kernel.tiles else {}
    # Blocks that stay take tile after tile; squares of tiles reach beyond the edges; so do tiles of parts.
    if tiles and not (config.get("BLOCKS") or config.get("WALK") == "squares" or problem.operation.parts):
        counts = [max(math.ceil(problem.dims[dim] / size - 1e-9), 1) for dim, size in tiles.items()]
        assert math.prod(launch.grid) == math.prod(counts)


@every_kernel
def test_defaults_are_legal_for_the_usual_problem(operation: Operation, kernel: Kernel) -> None:
    config = kernel.default_config()
    assert config is not None, "a person who does not tune needs a default for every parameter"
    assert kernel.idea
    # A default of a CPU kernel may name a vector width, which one of the CPUs has and the other has not.
    enough = all if kernel.kind == "cuda" else any
    for layout in operation.layouts:
        problem = usual_problem(operation, layout, kernel=kernel.name)
        assert enough(kernel.legal(problem, device, config) for device in devices(kernel))


@pytest.mark.parametrize(("operation", "kernel"), kernels("cpu"), ids=name_of)
def test_a_cpu_kernel_declares_its_threads(operation: Operation, kernel: Kernel) -> None:
    names = {each.name for each in kernel.parameters}
    assert kernel.threads in names
    sources = kernel.source.file.read_text(encoding="utf-8")
    assert f"run_together({kernel.threads}" in sources or f"set_num_threads(min({kernel.threads}" in sources


def test_no_declaration_repeats_a_rule_or_a_helper_of_another() -> None:
    places: dict[str, set[str]] = defaultdict(set)
    for path in kernels_folder().rglob("*.py"):
        if path.name.endswith((".numba.py", "operation.py")) or path.parent.name == "limits":
            continue  # operations are unlike in what looks alike; limits are files of their own
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                said = ast.get_docstring(node) is not None
                body = ast.dump(ast.Module(node.body[1:] if said else node.body, []))
                places[body].add(f"{path.relative_to(kernels_folder())}: {node.name}")
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Constraint", "for_speed"):
                sentence = ast.dump(node.args[0])
                places[sentence].add(f"{path.relative_to(kernels_folder())}: {ast.unparse(node.args[0])}")
    repeated = [sorted(found) for found in places.values() if len(found) > 1]
    assert repeated == [], "put these into a sibling, or into tuner/declare/rules.py"
