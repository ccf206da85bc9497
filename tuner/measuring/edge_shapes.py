"""Shapes at which an otherwise correct kernel may fail: ones, primes, near its tiles, long and thin."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config, Parameter, Space
from tuner.errors import InputError

#: Largest number of cases for one config.
CASES = 10
#: Config values above this are not taken for tile sizes, so that arrays stay small.
LARGEST_TILE = 512
#: Larger cases cost more than they reveal.
LIMIT_BYTES = 256 << 20
PRIMES = (37, 61, 29, 43, 53)
#: A long dim beside short ones.
LONG = 1031


def edge_problems(problem: Problem, kernel: Kernel, config: Config, device: DeviceInfo) -> tuple[Problem, ...]:
    """Small problems of the same operation, dtype and layout that the config must solve, too.

    Args:
        problem: Supplies operation, dtype and layout.
        kernel: The kernel to check.
        config: Its config.
        device: Constraints may depend on it.
    """
    found: list[Problem] = []
    for sizes in _sizes(len(problem.shape), _tile(config)):
        shape = {name: size for (name, _), size in zip(problem.shape, sizes, strict=True)}
        try:
            case = problem.operation.problem(shape, problem.dtype, problem.layout)
            legal = is_legal(kernel, config, case, device)
        except (InputError, ArithmeticError):
            continue
        if legal and case not in found and case.memory_bytes <= LIMIT_BYTES:
            found.append(case)
    return tuple(found[:CASES])


def is_legal(kernel: Kernel, config: Config, problem: Problem, device: DeviceInfo) -> bool:
    """True if the config must give the correct result; it may break rules that are for speed alone."""
    rules = [each for each in kernel.constraints if not each.for_speed]
    only = [Parameter(each.name, (config[each.name],), each.scale) for each in kernel.parameters]
    return len(Space.build(only, rules, problem, device)) == 1


def _tile(config: Config) -> int:
    sizes = [value for value in config.values() if isinstance(value, int) and 1 < value <= LARGEST_TILE]
    return max(sizes, default=16)


def _sizes(dims: int, tile: int) -> Iterator[tuple[int, ...]]:
    yield (1,) * dims
    yield (PRIMES * dims)[:dims]
    for size in (tile - 1, tile, tile + 1):
        yield (size,) * dims
    for number in range(dims):
        for short in (1, 3):
            yield tuple(LONG if each == number else short for each in range(dims))
    # Shapes for which vector accesses are legal: multiples of 4 that no tile divides.
    yield tuple(4 * prime for prime in (PRIMES * dims)[:dims])
    yield tuple(tile + 4 * (each + 1) for each in range(dims))
