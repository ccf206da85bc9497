"""Gathers on a GPU what algorithms.json has of its architecture, and prints the whole.

    python kernels/gemm/cublaslt/_gather.py .../include/cublasLt.h > algorithms.json

Algorithms are those of 2 % or more of what the heuristic proposes for problems that are drawn; of each come
tiles, stages and clusters that it proposes, and the custom options that cuBLASLt's check accepts for a tile.
"""

import ctypes
import itertools
import json
import random
import re
import sys
from collections import Counter
from ctypes import byref, c_size_t, c_uint16, c_uint32, c_uint64
from pathlib import Path
from typing import Any

import cupy

from tuner.declare.catalogue import builtin
from tuner.declare.kernel import render
from tuner.declare.space import Config
from tuner.devices.cublaslt.products import product_of
from tuner.devices.cuda import cublas
from tuner.devices.protocol import LaunchFailed

#: ``cublasLtMatmulAlgoConfigAttributes_t`` of id, tile, stages, custom option, shape of clusters.
ATTRIBUTES = ((0, c_uint32), (1, c_uint32), (6, c_uint32), (5, c_uint32), (8, c_uint16))
#: ``cublasLtMatmulAlgoCapAttributes_t``: what its sums are in, and the alignment of its operands.
NUMERICAL, ALIGNMENT, SUMS_IN_FLOAT32 = 15, 16, 2 << 8
PROBLEMS, LEAST_SHARE, OPTIONS = 600, 0.02, 8
OPERATION = builtin().operation("gemm")
(KERNEL,) = builtin().of("gemm", "cuda", ("cublaslt",))
FIRST = KERNEL.first_configs()[0]


def described(shape: dict[str, int], dtype: str, layout: str, config: dict[str, int]) -> Any:
    """A product as the kernel describes it; None where cuBLASLt refuses it."""
    problem = OPERATION.problem(shape, dtype, layout)
    try:
        return product_of(render(KERNEL, problem, Config({**FIRST, **config})), problem)
    except LaunchFailed:
        return None


def told(product: Any, kind: str, algorithm: Any, number: int, value: Any) -> int:
    """An attribute of an algorithm."""
    written, size = c_size_t(), c_size_t(ctypes.sizeof(value))
    name = f"cublasLtMatmulAlgo{kind}GetAttribute"
    product.check(name, byref(algorithm), number, byref(value), size, byref(written))
    return int(value.value)


def gathered(dtype: str) -> dict[str, Any]:
    """The algorithms of a dtype, by id."""
    rng, proposed, some = random.Random(7), Counter[tuple[int, ...]](), {}

    def size(most: int) -> int:
        value = int(2 ** rng.uniform(0, most))
        return max(8, value // 8 * 8) if rng.random() < 0.7 else value

    for _ in range(PROBLEMS):
        shape = {"m": size(14), "n": size(14), "k": size(16)}
        product = described(shape, dtype, rng.choice(OPERATION.layouts), {})
        for result in product.proposals() if product else ():
            numbers = tuple(told(product, "Config", result.algorithm, at, kind()) for at, kind in ATTRIBUTES)
            proposed[numbers] += 1
            some[numbers[0]] = product, result.algorithm
    return {
        str(name): algorithm
        for name in sorted(some)
        if sum(count for numbers, count in proposed.items() if numbers[0] == name)
        >= LEAST_SHARE * proposed.total()
        if (algorithm := of_algorithm(dtype, name, *some[name], {each for each in proposed if each[0] == name}))
    }


def of_algorithm(dtype: str, name: int, product: Any, algorithm: Any, proposed: set[tuple[int, ...]]) -> Any:
    """Alignment, tiles with stages and custom options, and shapes of clusters; None for one without tiles."""
    if not told(product, "Cap", algorithm, NUMERICAL, c_uint64()) & SUMS_IN_FLOAT32:
        return None
    tiles = sorted({numbers[1:3] for numbers in proposed if numbers[1]})
    clusters = sorted({numbers[4] for numbers in proposed})
    options = sorted({*range(OPTIONS), *(numbers[3] for numbers in proposed)})
    shape = dict.fromkeys("mnk", 4096)
    shapes = [
        (*tile, option)
        for tile, option in itertools.product(tiles, options)
        if any(
            described(shape, dtype, layout, {
                "PROPOSAL": 0, "ALGORITHM": name, "TILE": tile[0], "STAGES": tile[1], "CUSTOM": option,
                "CLUSTER": cluster,
            })
            for layout, cluster in (("nn", clusters[0]), ("tn", clusters[-1]))
        )
    ]  # fmt: skip
    alignment = told(product, "Cap", algorithm, ALIGNMENT, c_uint32())
    return {"align": alignment, "clusters": clusters, "shapes": shapes} if shapes else None


def main(header: Path) -> None:
    """Prints the table with what this machine's GPU has."""
    known = json.loads(Path(__file__).with_name("algorithms.json").read_text(encoding="utf-8"))
    architecture = f"sm_{cupy.cuda.Device().compute_capability}"
    rows = {dtype: gathered(dtype) for dtype in KERNEL.scope.dtypes}
    known["architectures"][architecture] = rows
    version = int(cublas.library("libcublasLt").cublasLtGetVersion())
    known["gathered"][architecture] = (
        f"cuBLAS {version}, {cupy.cuda.runtime.getDeviceProperties(0)['name'].decode()}"
    )
    sizes = re.findall(r"CUBLASLT_MATMUL_TILE_(\d+)x(\d+) *= (\d+)", header.read_text(encoding="utf-8"))
    used = {
        tile for dtypes in known["architectures"].values() for algorithms in dtypes.values()
        for each in algorithms.values() for tile, _, _ in each["shapes"]
    }  # fmt: skip
    known["tiles"] |= {name: [int(m), int(n)] for m, n, name in sizes if int(name) in used}
    print(json.dumps(known, separators=(",", ": ")))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
