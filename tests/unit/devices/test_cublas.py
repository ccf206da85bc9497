"""cuBLAS's functions, and products by cuBLASLt. No GPU: the libraries are played, on the host's memory."""

import contextlib
import ctypes
import importlib
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fixtures.fake_gpu import H200, at

pytest.importorskip("cupy")

from tuner.declare.catalogue import builtin
from tuner.declare.kernel import render
from tuner.declare.space import Config
from tuner.devices.cuda import native
from tuner.devices.detect import language_of
from tuner.devices.protocol import Arrays, LaunchFailed

CATALOGUE = builtin()
GEMM = CATALOGUE.operation("gemm")
(KERNEL,) = CATALOGUE.of("gemm", "cuda", ("cublaslt",))
NAMES = "tuner.devices.cuda.cublas", "tuner.devices.cublaslt.products"
TYPES = {0: "float32", 2: "float16", 14: "bfloat16", 28: "float8_e4m3fn"}
#: By the manual: bit of a bias, and what is applied.
ACTIVATIONS = {1: lambda x: x, 2: lambda x: np.maximum(x, 0)}
#: An algorithm that cuBLASLt does not propose.
NAMED = {"PROPOSAL": 0, "ALGORITHM": 20, "TILE": 15, "STAGES": 28, "SPLIT_K": 4, "REDUCTION": 2}


#: What native code calls: the stream is the last of sixteen words.
NATIVE = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * 16)


class Function:
    """A function of a library, which Python calls, and native code at its address."""

    def __init__(self, call: Any, natively: Any = None) -> None:
        self._call, self._as_parameter_ = call, natively

    def __call__(self, *given: Any) -> int:
        return self._call(*given) or 0


class CublasLt:
    """cuBLASLt by its manual: column-major. It proposes two algorithms, the second of which needs memory."""

    def __init__(self) -> None:
        self.made: dict[int, Any] = {}
        self.ran: list[tuple[int, ...]] = []
        self.refused: tuple[int, ...] = ()
        self.natively = {
            name: NATIVE(lambda *given, call=call: call(*given) or 0)
            for name, call in (("Matmul", self._matmul), ("MatmulDescSetAttribute", self._point))
        }

    def __getattr__(self, name: str) -> Function:
        if name.startswith("_"):
            raise AttributeError(name)
        if name.endswith("Destroy"):
            return Function(lambda made: self.made.pop(made.value) and 0)
        if name.endswith("SetAttribute") and "Config" not in name:
            return Function(self._set, self.natively.get(name.removeprefix("cublasLt")))
        name = name.removeprefix("cublasLt")
        return Function(getattr(self, f"_{name.lower()}", self._create), self.natively.get(name))

    def _create(self, made: Any, *given: Any) -> None:
        made._obj.value = len(self.made) + 1
        self.made[made._obj.value] = {"given": [getattr(each, "value", each) for each in given]}

    def _set(self, of: Any, attribute: int, value: Any, size: Any) -> None:
        assert size.value == ctypes.sizeof(value._obj)
        self.made[of.value][attribute] = value._obj.value

    def _point(self, of: int, attribute: int, pointer: int, size: int, *_: int) -> None:
        assert size == 8
        self.made[of][attribute] = ctypes.c_uint64.from_address(pointer).value

    def _matmulalgogetheuristic(self, *given: Any) -> None:
        assert self.made[given[6].value][1] == 32 << 20, "bytes of workspace"
        results, count = given[8], given[9]
        for place in (0, 1):
            results[place].algorithm[6], results[place].workspace = 100 + place, 512 * place
        count._obj.value = 2

    def _matmulalgoinit(self, *given: Any) -> None:
        given[-1]._obj[6] = given[-2]

    def _matmulalgoconfigsetattribute(self, algorithm: Any, attribute: int, value: Any, size: Any) -> None:
        algorithm[attribute - 1] = value._obj.value

    def _matmulalgocheck(self, *given: Any) -> int:
        return 15 if tuple(given[-2]._obj) == self.refused else 0

    def _matmul(self, *given: int) -> None:
        _, described, alpha, b, of_b, a, of_a, beta, added, of_c, c, _, algorithm, memory, size, _ = given
        kind = self.made[described]

        def matrix(address: int, of: int) -> Any:
            dtype, rows, columns, ld = self.made[of]["given"]
            return at(address, (columns, ld), TYPES[self.made[of].get(0, dtype)])[:, :rows].T

        first, second = (matrix(*each).astype("f4") for each in ((b, of_b), (a, of_a)))
        first, second = (first.T if kind.get(3) else first), (second.T if kind.get(4) else second)
        (n, k), m = first.shape, second.shape[1]
        if kind.get(17):
            blocks = -(-k // 128)
            shape = {0: (1, 1), 3: (n, 1), 5: (-(-n // 128), blocks)}[kind.get(31, 0)]
            first = first * spread(at(kind[17], shape, "float32"), (n, k))
            shape = {0: (1, 1), 3: (1, m), 4: (blocks, m)}[kind.get(32, 0)]
            second = second * spread(at(kind[18], shape, "float32"), (k, m))
        sums = first @ second
        result = matrix(c, of_c)
        alpha, beta = (ctypes.c_float.from_address(each).value for each in (alpha, beta))
        sums = alpha * sums + beta * matrix(added, of_c).astype("f4")
        if kind[7] & 4:
            sums += at(kind[8], (len(sums), 1), TYPES[kind[26]]).astype("f4")
        result[...] = ACTIVATIONS[kind[7] & ~4 or 1](sums)
        assert bool(memory) == bool(size)
        self.ran.append(tuple((ctypes.c_uint64 * 8).from_address(algorithm)))


def spread(scales: Any, shape: tuple[int, ...]) -> Any:
    """A scale for each element; one of a block is for 128, a single one for all."""
    for axis, size in enumerate(shape):
        if scales.shape[axis] not in (1, size):
            scales = scales.repeat(128, axis).take(range(size), axis)
    return np.broadcast_to(scales, shape)


@pytest.fixture
def lt() -> CublasLt:
    return CublasLt()


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch, lt: CublasLt) -> Any:
    """The modules, loaded anew beside a wrapper that machines without a GPU cannot load."""
    played = SimpleNamespace(sgemv="sgemv", dgemv="dgemv", sgeam="sgeam", dgeam="dgeam")
    monkeypatch.setitem(vars(importlib.import_module("cupy_backends.cuda.libs")), "cublas", played)
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setitem(sys.modules, name, importlib.import_module(name))
    module: Any = sys.modules[NAMES[1]]
    monkeypatch.setattr(module.cublas, "library", lambda name: lt)
    monkeypatch.setattr(native, "driver_functions", lambda: (0, 0, 0))
    monkeypatch.setattr(module.cupy.cuda, "Device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(module.cublas, "handle", lambda: "handle")
    monkeypatch.setattr(module.cupy.cuda.runtime, "getDevice", lambda: 0)
    memory = lambda size, dtype: SimpleNamespace(data=SimpleNamespace(ptr=size and 1 << 20))
    monkeypatch.setattr(module.cupy, "empty", memory)
    monkeypatch.setattr(module.cupy.cuda, "get_current_stream", lambda: SimpleNamespace(ptr=7))
    return module


class HostArrays(Arrays):
    """Arrays of a problem in the host's memory, as CuPy tells where its own lie."""

    def __init__(self, problem: Any) -> None:
        self.problem, rng = problem, np.random.default_rng(3)
        self.host = {each.name: rng.standard_normal(each.shape).astype(each.dtype) for each in problem.tensors}
        self.arrays = {
            name: SimpleNamespace(
                data=SimpleNamespace(ptr=each.ctypes.data),
                shape=each.shape,
                itemsize=each.itemsize,
                tolist=each.tolist,
            )
            for name, each in self.host.items()
        }

    def wrong(self) -> float:
        """How far C is off, over the largest element."""
        right = self.problem.operation.reference(np, self.problem, self.host)
        return float(abs(self.host["c"].astype(float) - right).max() / abs(right).max())


def problem(epilogue: str = "", dtype: str = "float32", layout: str = "nn") -> Any:
    return GEMM.problem({"m": 3, "n": 5, "k": 7}, dtype, layout, "", epilogue)


def rendered(of: Any, **config: int) -> Any:
    return render(KERNEL, of, Config({**KERNEL.first_configs()[0], **config}))


@pytest.mark.parametrize("layout", GEMM.layouts)
@pytest.mark.parametrize("epilogue", ["", "alpha+beta+bias-col+relu", "bias-col+residual", "residual", "alpha"])
def test_a_product_is_that_of_the_problem(products: Any, lt: Any, layout: str, epilogue: str) -> None:
    for dtype, allowed in (("float32", 1e-5), ("bfloat16", 1e-2)):
        arrays = HostArrays(problem(epilogue, dtype, layout))
        run = language_of("cublaslt").bind(rendered(arrays.problem, PROPOSAL=2), b"", arrays, H200)
        run()
        assert arrays.wrong() < allowed
        assert lt.ran.pop()[6] == 101, "the second proposal"
        del run
    assert [each for each in lt.made.values() if len(each) > 1] == [], "all that was described is given back"


def test_native_code_has_a_run_of_its_own_which_says_where_its_bias_is(products: Any, lt: Any) -> None:
    arrays = HostArrays(problem("bias-col"))
    of = rendered(arrays.problem)
    run = products.PreparedProduct(of, arrays.problem, [scalar.value for scalar in arrays.problem.scalars])
    addresses = [arrays.arrays[each.name].data.ptr for each in arrays.problem.tensors]
    for queue in (run, run.again()):
        arrays.host["c"][:] = 1e30
        queue(7, *addresses)
        assert arrays.wrong() < 1e-5
    assert sum(each.get(8) == addresses[2] for each in lt.made.values()) == 2


def test_a_config_names_an_algorithm_which_cublaslt_may_refuse(products: Any, lt: Any) -> None:
    arrays = HostArrays(problem())
    named = rendered(arrays.problem, **NAMED)
    products.bound(named, arrays)()
    # By the attributes' numbers: tile, split, reduction, swizzle, custom, stages; the id is kept at 7; cluster.
    assert lt.ran == [(15, 4, 2, 0, 0, 28, 20, 0)]
    assert arrays.wrong() < 1e-5
    lt.refused = lt.ran[0]
    with pytest.raises(LaunchFailed, match="cublasLtMatmulAlgoCheck: not supported"):
        products.bound(named, arrays)
    with pytest.raises(LaunchFailed, match="proposes 2 algorithms here, and none is number 3"):
        products.bound(rendered(arrays.problem, PROPOSAL=3), arrays)


@pytest.mark.parametrize("layout", GEMM.layouts)
def test_users_have_gemm_ex_by_default(products: Any, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    queued: list[tuple[Any, ...]] = []
    monkeypatch.setattr(products.cublas, "function", lambda name: lambda *given: queued.append((name, *given)))
    arrays = HostArrays(problem("", "bfloat16", layout))
    GEMM.baselines["cuda"].call(None, arrays.problem, arrays.arrays)
    name, _, of_b, of_a, *sizes = queued[0][:7]
    assert (name, sizes, GEMM.baselines["cuda"].named(arrays.problem)) == ("cublasGemmEx", [5, 3, 7], name)
    assert (of_b, of_a) == (int(layout[1] == "t"), int(layout[0] == "t"))
    a, b, c = (arrays.arrays[each].data.ptr for each in "abc")
    values = [each.value if isinstance(each, ctypes.c_void_p) else each for each in queued[0][8:]]
    assert values[:6] == [b, 14, 5 if layout[1] == "n" else 7, a, 14, 7 if layout[0] == "n" else 3]
    assert values[7:] == [c, 14, 5, 68, -1], "sums in float32, the default algorithm"


@pytest.mark.parametrize("layout", GEMM.layouts)
@pytest.mark.parametrize(("dtype", "sums"), [("float32", 68), ("float64", 70), ("bfloat16", 68)])
def test_a_batch_is_one_call_of_strided_products(
    products: Any, monkeypatch: pytest.MonkeyPatch, layout: str, dtype: str, sums: int
) -> None:
    bmm = CATALOGUE.operation("bmm")
    arrays = HostArrays(bmm.problem({"batch": 4, "m": 3, "n": 5, "k": 7}, dtype, layout))

    def by_the_manual(*given: Any) -> int:
        """Columns of `ld` elements; matrices follow each other at a stride that C takes as 64 bits."""
        assert given[0] == "handle"
        turned, (n, m, k), (batch, *how) = given[1:3], given[3:6], given[20:]
        assert (batch, how) == (4, [sums, -1])
        stacks = []
        for place, rows, columns in ((7, *((k, n) if turned[0] else (n, k))),
                                     (11, *((m, k) if turned[1] else (k, m))), (16, n, m)):  # fmt: skip
            address, _, ld, stride = given[place : place + 4]
            assert (ld, stride.value, ctypes.sizeof(stride)) == (rows, rows * columns, 8)
            stacks.append(at(address.value, (batch, columns, ld), dtype))
        first, second = (stack.astype("f8") for stack in stacks[:2])
        first = first if turned[0] else first.swapaxes(1, 2)
        second = second if turned[1] else second.swapaxes(1, 2)
        stacks[2][...] = (first @ second).swapaxes(1, 2)
        return 0

    monkeypatch.setattr(products.cublas, "function", {"cublasGemmStridedBatchedEx": by_the_manual}.get)
    bmm.baselines["cuda"].call(None, arrays.problem, arrays.arrays)
    assert arrays.wrong() < (1e-2 if dtype == "bfloat16" else 1e-6)


@pytest.mark.parametrize("layout", ["nn-hot", "nt-hot"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_groups_are_a_product_each_but_for_those_without_rows(
    products: Any, monkeypatch: pytest.MonkeyPatch, layout: str, dtype: str
) -> None:
    grouped, sizes = CATALOGUE.operation("grouped"), []
    arrays = HostArrays(grouped.problem({"rows": 9, "n": 5, "k": 7, "groups": 4}, dtype, layout))
    arrays.host["offsets"][:] = 2, 2, 8, 9

    def by_the_manual(*given: Any) -> int:
        """A row-major C is its C transposed: B comes first, and is the one that may be turned."""
        turned, (n, m, k), (b, _, ld) = given[1], given[3:6], given[7:10]
        assert (given[2], given[12], given[16:]) == (0, k, (n, 68, -1))
        first = at(b.value, (n if turned else k, ld), dtype).astype("f8")
        second, c = at(given[10].value, (m, k), dtype).astype("f8"), at(given[14].value, (m, n), dtype)
        c[...] = second @ (first.T if turned else first)
        sizes.append(m)
        return 0

    monkeypatch.setattr(products.cublas, "function", {"cublasGemmEx": by_the_manual}.get)
    grouped.baselines["cuda"].call(None, arrays.problem, arrays.arrays)
    assert (sizes, arrays.wrong() < 1e-2) == ([2, 6, 1], True)


@pytest.mark.parametrize("shape", [(4, 16, 512), (8, 272, 512)])
@pytest.mark.parametrize(
    "epilogue", ["", "scale-tensor+to-float32", "scale-line+bias-col+to-float16", "scale-block+relu"]
)
def test_8_bit_products_are_scaled(products: Any, lt: Any, epilogue: str, shape: tuple[int, int, int]) -> None:
    of = GEMM.problem(dict(zip("mnk", shape, strict=True)), "float8_e4m3fn", "", "", epilogue)
    arrays = HostArrays(of)
    GEMM.baselines["cuda"].call(None, of, arrays.arrays)
    assert arrays.wrong() < 1e-2
    (fast,) = {each.get(25) for each in lt.made.values() if 25 in each}
    assert fast == 0, "sums are promoted unless a config says otherwise"
    assert [each[6] for each in lt.ran] == [100], "the first proposal"


@pytest.mark.parametrize(("epilogue", "dtype", "rest", "name"), [
    ("alpha+bias-col+relu", "bfloat16", "", "cuBLASLt's first choice"),
    ("bias-col+gelu", "float16", "gelu", "cuBLASLt's first choice + element-wise"),
    ("bias-row+silu", "float32", "bias-row+silu", "cuBLASLt's first choice + element-wise"),
])  # fmt: skip
def test_cublaslt_does_what_it_can_and_a_kernel_the_rest(
    products: Any, lt: Any, monkeypatch: pytest.MonkeyPatch, epilogue: str, dtype: str, rest: str, name: str
) -> None:
    behind: list[Any] = []
    monkeypatch.setattr(
        products, "finishing", lambda of, left: lambda places: behind.append((left.text, places))
    )
    arrays = HostArrays(problem(epilogue, dtype))
    baseline = GEMM.baselines["cuda"]
    baseline.call(None, arrays.problem, arrays.arrays)
    assert baseline.named(arrays.problem) == name
    assert [each[6] for each in lt.ran] == [100], "the first proposal"
    places = {name: each.data.ptr for name, each in arrays.arrays.items()}
    assert behind == ([(rest, places)] if rest else [])
    assert rest or arrays.wrong() < 1e-2
