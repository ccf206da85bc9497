"""Launches of the emulated gemm, of the plain kernel behind it, and of cuBLAS, for `scripts/bench/emulated`."""

from __future__ import annotations

import ctypes
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cupy_backends.cuda.libs import nvrtc

ROOT = Path(__file__).resolve().parents[2]
CUDA = ROOT / "kernels" / "gemm" / "cuda"
CHOICES = {
    "ORDER": ("rows", "snake"), "TURNS": ("free", "taken", "early"), "PROMOTION": ("plain", "compensated"),
}  # fmt: skip


def ceil_div(numerator: int, denominator: int) -> int:
    """Smallest whole number not below the quotient."""
    return -(-numerator // denominator)


def source(config: dict[str, Any], files: tuple[str, ...], layout: str) -> str:
    """The files' text behind the config's constants.

    For experiments, ``PATCH`` replaces words, and ``FOLDER`` says where other files of these names are.
    """
    values = {
        **config,
        "SCALAR": "float",
        "A_TRANSPOSED": int(layout[0] == "t"),
        "B_TRANSPOSED": int(layout[1] == "t"),
    }
    lines = []
    for name, value in values.items():
        if name in CHOICES:
            lines += [f"#define {name}_{each} {index}" for index, each in enumerate(CHOICES[name])]
            value = f"{name}_{value}"
        if name not in ("PATCH", "FOLDER"):
            lines.append(f"#define {name} {value}")
    folder = Path(config.get("FOLDER", CUDA))
    text = "\n".join([*lines, *((folder / name).read_text() for name in files)])
    for right, other in config.get("PATCH", ()):
        text = text.replace(right, other)
    return text


@cache
def compiled(text: str) -> tuple[bytes, str]:
    """Cubin for sm_90a, and the compiler's log."""
    program = nvrtc.createProgram(text, "emulated.cu", (), ())
    try:
        nvrtc.compileProgram(program, ("--std=c++17", "--ptxas-options=-v", "--gpu-architecture=sm_90a"))
    except nvrtc.NVRTCError:
        raise SystemExit(nvrtc.getProgramLog(program)) from None
    return nvrtc.getCUBIN(program) + b"\0", nvrtc.getProgramLog(program)


def plain(m: int, n: int, k: int, layout: str) -> tuple[str, Any]:
    """The plain kernel that large products fall back to, and its launch."""
    sys.path[:0] = [str(ROOT)]
    from tuner.declare.catalogue import builtin
    from tuner.declare.kernel import render
    from tuner.declare.space import Config

    problem = builtin().operation("gemm").problem({"m": m, "n": n, "k": k}, layout=layout, precision="emulated")
    (emulated,) = builtin().of("gemm", "cuda", ("emulated",))
    reads = "any" if m % 4 or n % 4 or k % 4 else "aligned"
    config = emulated.scope.fallback.config(Config({**emulated.default_config(), "PLAIN": reads}))
    rendered = render(emulated.scope.fallback.kernel, problem, Config(config))
    return rendered.text, rendered.launch


@dataclass
class Binaries:
    """Cubins of a variant for a layout: product, packing."""

    config: dict[str, Any]
    product: bytes
    pack: bytes
    report: str


def launch_early(cp: Any, kernel: Any, grid: int, block: int, arguments: tuple[Any, ...], shared: int) -> None:
    """A launch that may start while the one before still runs (programmatic stream serialization)."""

    class Attribute(ctypes.Structure):
        _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int * 16))

    class Config(ctypes.Structure):
        _fields_ = (
            ("sizes", ctypes.c_uint * 6), ("shared", ctypes.c_uint), ("stream", ctypes.c_void_p),
            ("attributes", ctypes.POINTER(Attribute)), ("count", ctypes.c_uint),
        )  # fmt: skip

    attribute = Attribute(6, 0, (ctypes.c_int * 16)(1))
    sizes = (ctypes.c_uint * 6)(grid, 1, 1, block, 1, 1)
    config = Config(sizes, shared, cp.cuda.get_current_stream().ptr, ctypes.pointer(attribute), 1)
    values = [
        ctypes.c_int(int(each)) if isinstance(each, cp.int32) else ctypes.c_void_p(each.data.ptr)
        for each in arguments
    ]
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(each) for each in values))
    function = ctypes.c_void_p(kernel.kernel.ptr)
    result = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx(ctypes.byref(config), function, pointers, None)
    assert result == 0, f"cuLaunchKernelEx: {result}"


class Product:
    """A variant's launches on a problem, and their memory."""

    def __init__(self, cp: Any, binaries: Binaries, m: int, n: int, k: int, layout: str) -> None:
        self.cp, self.config, c = cp, binaries.config, binaries.config
        self.sizes = (m, n, k)
        self.pack_kernel = self._load(binaries.pack, "pack")
        self.kernel = self._load(binaries.product, "gemm")
        self.bm, self.bn = 64 * c["CONSUMERS"], c["WIDTH"] * c["PARTS"]
        factor_slots = c["STAGES"] // (c["CHUNK"] // 32) + 2
        factors = ceil_div(self.bm + self.bn // 8 + 8, 4) * 4
        self.shared = 1024 + c["STAGES"] * (self.bm + self.bn) * 128 + factor_slots * factors * 4
        self.kernel.max_dynamic_shared_size_bytes = self.shared
        sides = ((m, 1), (n, 8))
        self.packed_a, self.packed_b = (cp.full(self._packed_bytes(*each), 255, cp.uint8) for each in sides)
        tiles = ceil_div(m, self.bm * c["CLUSTER"]) * c["CLUSTER"] * ceil_div(n, self.bn)
        self.items = tiles * c["SPLIT_K"]
        self.control = cp.zeros(256 + 4 * tiles * c["CONSUMERS"], cp.uint8)
        self.parts = cp.empty(self.items * self.bm * self.bn if c["SPLIT_K"] > 1 else 64, cp.float32)
        self.fallbacks = cp.zeros(1, cp.uint32)

    def _load(self, cubin: bytes, name: str) -> Any:
        with tempfile.NamedTemporaryFile(suffix=".cubin", delete=False) as file:
            file.write(cubin)
        return self.cp.RawModule(path=file.name).get_function(name)

    def _packed_bytes(self, rows: int, share: int) -> int:
        chunk, k = self.config["CHUNK"], self.sizes[2]
        padded, chunks = ceil_div(rows, 8) * 8, ceil_div(k, chunk)
        groups = ceil_div(padded // share, 4) * 4
        return 256 + ceil_div(chunks * groups * 4, 256) * 256 + chunks * (chunk // 32) * padded * 128

    def pack(self, a: Any, b: Any) -> None:
        """Packs both; None: that operand was packed before."""
        chunks = ceil_div(self.sizes[2], self.config["CHUNK"])
        rows = [size for size, each in zip(self.sizes, (a, b), strict=False) if each is not None]
        tiles = sum(ceil_div(size, 64) * chunks for size in rows)
        blocks = min(tiles, 132 * self.config["PACK_BLOCKS"])
        i, null = self.cp.int32, self.cp.uint64(0)
        a, b = (null if each is None else each for each in (a, b))
        arguments = (a, b, self.packed_a, self.packed_b, self.fallbacks, *map(i, self.sizes), self.control)
        self.pack_kernel((blocks,), (256,), arguments)

    def multiply(self, c: Any) -> None:
        """The product of what is packed."""
        cluster = self.config["CLUSTER"]
        blocks = min(self.items, self.config["BLOCKS"] // cluster * cluster)
        sizes = map(self.cp.int32, self.sizes)
        arguments = (self.packed_a, self.packed_b, c, *sizes, self.control, self.control[256:], self.parts)
        threads = 128 * (self.config["CONSUMERS"] + 1)
        if self.config["PDL"]:
            launch_early(self.cp, self.kernel, blocks, threads, arguments, self.shared)
        else:
            self.kernel((blocks,), (threads,), arguments, shared_mem=self.shared)

    def fell_back(self) -> bool:
        """The verdict on what was packed last."""
        return bool(self.control[128:132].view(self.cp.uint32)[0])


class Plain:
    """The plain kernel behind a verdict, or alone."""

    def __init__(self, cp: Any, m: int, n: int, k: int, layout: str, asked: Any = None) -> None:
        text, self.launch = plain(m, n, k, layout)
        self.cp, self.sizes, self.asked = cp, (m, n, k), asked
        from tuner.declare.kernel import ENTRY, guarded

        cubin, _ = compiled(text if asked is None else guarded(text, "gemm"))
        with tempfile.NamedTemporaryFile(suffix=".cubin", delete=False) as file:
            file.write(cubin)
        self.kernel = cp.RawModule(path=file.name).get_function("gemm" if asked is None else ENTRY)
        self.kernel.max_dynamic_shared_size_bytes = max(self.launch.shared_bytes, 1)

    def run(self, a: Any, b: Any, c: Any) -> None:
        """Launches it."""
        first = () if self.asked is None else (self.asked,)
        arguments = (*first, a, b, c, *map(self.cp.int32, self.sizes))
        self.kernel(self.launch.grid, self.launch.block, arguments, shared_mem=self.launch.shared_bytes)


class Library:
    """cuBLAS's SGEMM on operands as stored."""

    def __init__(self, cp: Any, m: int, n: int, k: int, layout: str) -> None:
        from cupy_backends.cuda.libs import cublas

        self.cublas, self.handle = cublas, cp.cuda.device.get_cublas_handle()
        self.sizes, self.ways = (m, n, k), [int(way == "t") for way in layout]
        self.one, self.zero = (cp.asarray(value, cp.float32).get() for value in (1, 0))

    def run(self, a: Any, b: Any, c: Any) -> None:
        """C = A B; cuBLAS sees the transposes of all three."""
        m, n, k = self.sizes
        lead_a, lead_b = (m if self.ways[0] else k), (k if self.ways[1] else n)
        self.cublas.sgemm(
            self.handle, self.ways[1], self.ways[0], n, m, k, self.one.ctypes.data, b.data.ptr, lead_b,
            a.data.ptr, lead_a, self.zero.ctypes.data, c.data.ptr, n,
        )  # fmt: skip
