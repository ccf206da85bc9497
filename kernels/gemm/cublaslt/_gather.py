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
from ctypes import byref, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import cupy

TABLE = Path(__file__).with_name("algorithms.json")
SOURCE = compile(Path(__file__).with_name("_matmul.py").read_text(encoding="utf-8"), "_matmul.py", "exec")
DTYPES = {"float32": 0, "float16": 2, "bfloat16": 14}
#: ``cublasLtMatmulAlgoConfigAttributes_t`` of id, tile, stages, custom option, shape of clusters.
ATTRIBUTES = ((0, c_uint32), (1, c_uint32), (6, c_uint32), (5, c_uint32), (8, c_uint16))
#: ``cublasLtMatmulAlgoCapAttributes_t``: what its sums are in, and the alignment of its operands.
NUMERICAL, ALIGNMENT, SUMS_IN_FLOAT32 = 15, 16, 2 << 8
PROBLEMS, LEAST_SHARE, OPTIONS = 600, 0.02, 8
#: Shares of k, and how they are added up: not at all, in place, in float32.
SHARES = ((1, 0), (2, 1), (2, 2))
#: What stands above the source.
NAMES = (
    "A_TRANSPOSED B_TRANSPOSED EPILOGUE_ALPHA EPILOGUE_BETA EPILOGUE_BIAS EPILOGUE_ACTIVATION "
    "EPILOGUE_RESIDUAL ALGORITHM TILE STAGES CUSTOM CLUSTER REDUCTION SWIZZLE"
)
CONSTANTS = dict.fromkeys(NAMES.split(), 0) | {"PROPOSAL": 1, "SPLIT_K": 1}


class Library:
    """cuBLASLt, and a handle."""

    def __init__(self) -> None:
        cupy.cuda.device.get_cublas_handle()
        path = re.search(r"\S+/libcublasLt\.so[.\d]*$", Path("/proc/self/maps").read_text(), re.MULTILINE)
        assert path, "CuPy has loaded it"
        self.library, self.handle = ctypes.CDLL(path[0]), c_void_p()
        self.library.cublasLtCreate(byref(self.handle))

    def product(self, m: int, n: int, k: int, **constants: int) -> Any:
        """A product as the kernel describes it; None where cuBLASLt refuses it."""
        names: dict[str, Any] = CONSTANTS | constants
        exec(SOURCE, names)
        try:
            return names["Product"](self.library, self.handle.value, m, n, k)
        except RuntimeError:
            return None


def told(product: Any, kind: str, algorithm: Any, number: int, value: Any) -> int:
    """An attribute of an algorithm."""
    written, size = c_size_t(), c_size_t(ctypes.sizeof(value))
    name = f"cublasLtMatmulAlgo{kind}GetAttribute"
    product.check(name, byref(algorithm), number, byref(value), size, byref(written))
    return int(value.value)


def gathered(library: Library, dtype: int) -> dict[str, Any]:
    """The algorithms of a dtype, by id."""
    rng, proposed, some = random.Random(7), Counter[tuple[int, ...]](), {}

    def size(most: int) -> int:
        value = int(2 ** rng.uniform(0, most))
        return max(8, value // 8 * 8) if rng.random() < 0.7 else value

    for _ in range(PROBLEMS):
        letters = {"A_TRANSPOSED": rng.randrange(2), "B_TRANSPOSED": rng.randrange(2)}
        product = library.product(size(14), size(14), size(16), DTYPE=dtype, **letters)
        for result in product.proposals() if product else ():
            numbers = tuple(told(product, "Config", result.algorithm, at, kind()) for at, kind in ATTRIBUTES)
            proposed[numbers] += 1
            some[numbers[0]] = product, result.algorithm
    shares: Counter[int] = Counter()
    for numbers, count in proposed.items():
        shares[numbers[0]] += count
    usual = sorted(name for name, count in shares.items() if count >= LEAST_SHARE * proposed.total())
    algorithms = {
        name: of_algorithm(library, dtype, *some[name], {each for each in proposed if each[0] == name})
        for name in usual
    }
    return {str(name): algorithm for name, algorithm in algorithms.items() if algorithm}


def of_algorithm(
    library: Library, dtype: int, product: Any, algorithm: Any, proposed: set[tuple[int, ...]]
) -> dict[str, Any] | None:
    """What the check accepts of an algorithm; None for one without tiles."""
    if not told(product, "Cap", algorithm, NUMERICAL, c_uint64()) & SUMS_IN_FLOAT32:
        return None
    tiles = sorted({numbers[1:3] for numbers in proposed if numbers[1]})
    clusters = sorted({numbers[4] for numbers in proposed})
    options = sorted({*range(OPTIONS), *(numbers[3] for numbers in proposed)})
    (name,) = {numbers[0] for numbers in proposed}
    reductions: set[int] = set()
    shapes = []
    for tile, option in itertools.product(tiles, options):
        config = {
            "DTYPE": dtype,
            "PROPOSAL": 0,
            "ALGORITHM": name,
            "TILE": tile[0],
            "STAGES": tile[1],
            "CUSTOM": option,
        }
        for cluster, (split, reduction) in itertools.product({clusters[0], clusters[-1]}, SHARES):
            if library.product(4096, 4096, 4096, CLUSTER=cluster, SPLIT_K=split, REDUCTION=reduction, **config):
                reductions |= {reduction} - {0}
                shapes.append((*tile, option, int(split > 1)))
    # Those that do without shares, too, are told as such.
    whole = {shape[:3] for shape in shapes if not shape[3]}
    shapes = sorted({shape for shape in shapes if not shape[3] or shape[:3] not in whole})
    found = {"clusters": clusters, "reductions": sorted(reductions), "shapes": shapes}
    return {"align": told(product, "Cap", algorithm, ALIGNMENT, c_uint32()), **found} if shapes else None


def main(header: Path) -> None:
    """Prints the table with what this machine's GPU has."""
    known, library = json.loads(TABLE.read_text(encoding="utf-8")), Library()
    architecture = f"sm_{cupy.cuda.Device().compute_capability}"
    known["architectures"][architecture] = {name: gathered(library, kind) for name, kind in DTYPES.items()}
    board = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    known["gathered"][architecture] = f"cuBLAS {library.library.cublasLtGetVersion()}, {board}"
    sizes = re.findall(r"CUBLASLT_MATMUL_TILE_(\d+)x(\d+) *= (\d+)", header.read_text(encoding="utf-8"))
    used = {
        tile
        for dtypes in known["architectures"].values()
        for algorithms in dtypes.values()
        for each in algorithms.values()
        for tile, *_ in each["shapes"]
    }
    known["tiles"] |= {name: [int(m), int(n)] for m, n, name in sizes if int(name) in used}
    print(json.dumps(known, separators=(",", ": ")))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
