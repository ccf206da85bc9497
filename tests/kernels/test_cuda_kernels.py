"""Every CUDA kernel, run on the CPU on edge shapes against its float64 reference, on poisoned output."""

import itertools
import math
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cuda_on_cpu import compile_for_cpu
from sampling import covering, edge_problems, every_kind, is_first_kind, is_right, name_of, space

from tuner.declare.kernel import Kernel, render
from tuner.declare.problem import SIGNIFICANDS, Problem, Tensor
from tuner.declare.space import Config
from tuner.workers.inputs import own_draw

ORDERS = ("forward", "backward", "random")
#: Blocks that such a device runs at once.
SMALL_DEVICE = 6


def drawn(rng: np.random.Generator, problem: Problem, tensor: Tensor) -> np.ndarray:
    """Normal numbers, or whole ones that seldom repeat; or as the operation draws them."""
    own = own_draw(np, problem, tensor, math.prod(tensor.shape), 7)
    if own is not None:
        return own.reshape(-1, *tensor.shape)[0]
    if tensor.dtype in SIGNIFICANDS:
        return rng.standard_normal(tensor.shape).astype(tensor.dtype)
    return rng.integers(0, 100 if tensor.dtype == "uint8" else 1_000_000, tensor.shape).astype(tensor.dtype)


def assert_right(
    kernel: Kernel, problem: Problem, config: Config, folder: Path, order: str, before: str = ""
) -> None:
    """Its result is the reference's, on poisoned output; `before` stands before its source."""
    rng = np.random.default_rng(7)
    arrays = {each.name: drawn(rng, problem, each) for each in problem.inputs}
    rendered = render(kernel, problem, config)
    rendered = replace(rendered, text=before + rendered.text)
    outputs = compile_for_cpu(rendered, folder).run(problem, rendered.launch, arrays, order)
    expected = problem.operation.reference(np, problem, arrays)
    if len(outputs) == 1 and not isinstance(expected, dict):
        expected = {problem.outputs[0].name: expected}
    for name, output in outputs.items():
        reference = expected[name]
        scale = np.sqrt(np.mean(np.square(reference))) + np.abs(reference)
        wrong = ~(np.abs(output - reference) <= problem.tolerance * scale)
        assert not wrong.any(), f"{problem} {config} {order}: first wrong at {np.argwhere(wrong)[0]}"


def assert_same_in_every_order(kernel: Kernel, problem: Problem, config: Config, folder: Path) -> None:
    """Whichever block or thread comes first, the sums are the same to the last bit."""
    rng = np.random.default_rng(5)
    arrays = {each.name: drawn(rng, problem, each) for each in problem.inputs}
    rendered = render(kernel, problem, config)
    program = compile_for_cpu(rendered, folder)
    first, *others = (program.run(problem, rendered.launch, arrays, order)["c"] for order in ORDERS)
    for other in others:
        np.testing.assert_array_equal(other, first)


@pytest.mark.parametrize(("usual", "kernel"), every_kind("cuda"), ids=name_of)
def test_results_on_awkward_shapes(usual: Problem, kernel: Kernel, folder: Path) -> None:
    order = itertools.cycle(ORDERS)
    # With as many blocks that stay as a small device runs at once: small problems are enough for them.
    configs = [
        Config({**config, "BLOCKS": SMALL_DEVICE}) if config.get("BLOCKS") else config
        for config in covering(space(kernel, usual), seed=zlib.crc32(str(usual).encode()))
    ]
    count, ones = 3, [usual.at(dict.fromkeys(usual.operation.dims, 1))]
    if not is_first_kind(usual):
        # They take a while: every value in the first kind of problem, some of them in the others.
        configs, count, ones = configs[: min(3, max(2, len(kernel.parameters) // 2))], 2, []
    tried = 0
    for seed, config in enumerate(configs):
        problems = edge_problems(kernel, config, usual, count=count, seed=seed)
        for problem in [*problems, *(one for one in ones if is_right(kernel, one, config))]:
            assert_right(kernel, problem, config, folder, next(order))
        tried += len(problems)
    assert tried >= (count - 1) * len(configs)
