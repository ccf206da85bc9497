"""Products by cuBLASLt: on a worker's arrays, at a caller's addresses, and what users who do not choose get."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import cupy
import numpy

from tuner.declare.catalogue import builtin
from tuner.declare.epilogue import BY_BLOCK, BY_LINE, BY_TENSOR, FLOAT8_DTYPES, SCALE_BLOCK, Epilogue
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Rendered, render
from tuner.declare.launch import Launch
from tuner.declare.problem import Problem
from tuner.devices.cublaslt.language import element_wise_source
from tuner.devices.cuda import cublas
from tuner.devices.cuda.calling import KEPT_BYTES, KEPT_PART, Loaded, relaxed
from tuner.devices.cuda.launching import PreparedRun, helper
from tuner.devices.cuda.native import LibraryCall, NativeRun, TensorAddress
from tuner.devices.protocol import Arrays, LaunchFailed, Run

#: Products that are kept ready, some of them with a workspace.
KEPT_PRODUCTS = 512
#: Threads and blocks of the kernel behind a product.
_THREADS, _MOST_BLOCKS = 256, 4096


_compiled = functools.cache(compile)
_catalogue = functools.cache(builtin)  # all declarations are executed for it, for tens of ms


@functools.lru_cache(1 << 12)
def _module(text: str) -> Mapping[str, Any]:
    """The names of a rendered source, which is compiled once for all constants above it."""
    (constants, _, source), module = text.partition("\n\n"), dict[str, Any]()
    exec(constants, module)
    exec(_compiled(source, "cublaslt", "exec"), module)
    return module


@functools.cache
def _handle(device: int) -> int | None:
    """A handle of cuBLASLt for a device, the current one; it stays."""
    made = ctypes.c_void_p()
    cublas.check(cublas.library("libcublasLt").cublasLtCreate(ctypes.byref(made)))
    return made.value


def product_of(rendered: Rendered, problem: Problem) -> Any:
    """The product that a source describes, on the current device.

    Raises:
        LaunchFailed: cuBLASLt refuses the algorithm.
    """
    made = cublas.library("libcublasLt"), _handle(cupy.cuda.runtime.getDevice())
    try:
        return _module(rendered.text)["Product"](*made, *problem.dims.values())
    except RuntimeError as error:
        raise LaunchFailed(str(error)) from error


class PreparedProduct(PreparedRun):
    """A product on one stream, with its workspace.

    Attributes:
        bytes: Size of the workspace.
    """

    def __init__(self, rendered: Rendered, problem: Problem, scalars: Sequence[Any]) -> None:
        """Has cuBLASLt check the algorithm.

        Args:
            rendered: The config and the source.
            problem: What it computes.
            scalars: NumPy's numbers of the dtypes that the problem declares.

        Raises:
            LaunchFailed: cuBLASLt refuses it.
        """
        self._rendered, self._problem, self._device = rendered, problem, cupy.cuda.runtime.getDevice()
        self._factors = _module(rendered.text)["factors"](*map(float, scalars[len(problem.dims) :]))
        product = product_of(rendered, problem)
        self.bytes = int(product.workspace_bytes)
        self._workspace = cupy.empty(self.bytes, dtype=cupy.uint8)
        self._native = self._run_of(product)

    def again(self) -> NativeRun:
        """See `PreparedRun`; it has a description of its own, which says where a call's bias is."""
        with cupy.cuda.Device(self._device):
            return self._run_of(product_of(self._rendered, self._problem))

    def _run_of(self, product: Any) -> NativeRun:
        places = map(TensorAddress, range(len(self._problem.tensors)))
        calls = product.calls(self._workspace.data.ptr, *map(ctypes.addressof, self._factors), *places)
        memory, library = (product, self._factors, self._workspace), cublas.library("libcublasLt")
        functions = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name, _ in calls]
        steps = [LibraryCall(of, given, memory) for of, (_, given) in zip(functions, calls, strict=True)]
        return NativeRun(steps, len(self._problem.tensors))

    def __call__(self, stream: int, *addresses: int) -> None:
        """Queues a run.

        Args:
            stream: Handle of a stream of the device.
            addresses: Of the problem's tensors.

        Raises:
            LaunchFailed: The call failed.
        """
        cublas.check(self._native(stream, *addresses))


def bound(rendered: Rendered, arrays: Arrays) -> Run:
    """Makes a product ready to run on arrays; see `tuner.devices.protocol.Device.load`."""
    tensors = arrays.problem.tensors
    product = PreparedProduct(rendered, arrays.problem, arrays.arguments()[len(tensors) :])
    addresses = [arrays.arrays[tensor.name].data.ptr for tensor in tensors]
    return lambda: product(cupy.cuda.get_current_stream().ptr, *addresses)


class CalledProduct(Loaded):
    """A product on one GPU, for callers."""

    def __init__(self, rendered: Rendered, problem: Problem, device: DeviceInfo, index: int) -> None:
        """Has cuBLASLt check the algorithm.

        Raises:
            LaunchFailed: cuBLASLt refuses it.
        """
        self._rendered, self._problem, self._index = rendered, problem, index
        self._scalars = tuple(numpy.dtype(scalar.dtype).type(scalar.value) for scalar in problem.scalars)
        self._code, self._module, self._packed = b"", None, {}
        self._declared = self._launch = Launch((), ())
        self._kept_bytes = max(KEPT_BYTES, device.memory_bytes // KEPT_PART)
        self._forget_runs()
        with cupy.cuda.Device(index), relaxed():
            product_of(rendered, problem)

    def _prepared(self, module: Any, launch: Launch, elsewhere: Mapping[str, Any]) -> PreparedProduct:
        return PreparedProduct(self._rendered, self._problem, self._scalars)


# --- What users get without a choice --------------------------------------------------------------------------


def default_product(problem: Problem, arrays: Mapping[str, Any]) -> None:
    """Queues cublasGemmEx, or what it has no function for by cuBLASLt's first proposal; a kernel does the rest.

    `tuner.declare.epilogue.Epilogue.in_cublas` says which part of an epilogue cuBLASLt applies. Of 8 bits it
    takes rows of multiples of 16 bytes alone; others are copied to such rows with zeros behind.

    Args:
        problem: gemm in a dtype of 16 or 8 bits, or with an epilogue.
        arrays: CuPy arrays by name, as stored.

    Raises:
        LaunchFailed: The library fails.
    """
    whole, given = _whole(problem), dict(arrays)
    if whole != problem:
        for tensor in whole.tensors:
            given[tensor.name] = cupy.zeros(tensor.shape, arrays[tensor.name].dtype)
            given[tensor.name][tuple(map(slice, arrays[tensor.name].shape))] = arrays[tensor.name]
    for run in _default(whole, cupy.cuda.runtime.getDevice()):
        run({name: array.data.ptr for name, array in given.items()})
    if whole != problem:
        arrays["c"][...] = given["c"][: problem.m, : problem.n]


@functools.lru_cache(KEPT_PRODUCTS)
def _whole(problem: Problem) -> Problem:
    """The problem, in 8 bits with rows, those of blocks' scales, too, that cuBLASLt takes."""
    if problem.dtype not in FLOAT8_DTYPES:
        return problem
    is_by_block = Epilogue.read(problem.epilogue).scale == BY_BLOCK
    has_odd_blocks = is_by_block and -(-problem.k // SCALE_BLOCK) % 4
    units = {"m": 4 if is_by_block else 1, "n": 16, "k": 4 * SCALE_BLOCK if has_odd_blocks else 16}
    shape = tuple((dim, -(-size // units[dim]) * units[dim]) for dim, size in problem.shape)
    return replace(problem, shape=shape)


def products_in_turn(problem: Problem, arrays: Mapping[str, Any], ends: Sequence[int]) -> None:
    """Queues products of rows of 8 bits that end at such numbers, each with its matrix of a stack.

    Args:
        problem: Its dims `n` and `k`, dtype and epilogue are those of each product.
        arrays: CuPy arrays by name; scales as `tuner.declare.rules.scales_of_stacks` has them.
        ends: Where the rows of each matrix end.
    """
    gemm, scale = _catalogue().operation("gemm"), Epilogue.read(problem.epilogue).scale
    for matrix, (first, end) in enumerate(zip([0, *ends], ends, strict=False)):
        if end == first:
            continue
        of = gemm.problem(
            {"m": end - first, "n": problem.n, "k": problem.k}, problem.dtype, "nt", "", problem.epilogue
        )
        part = {name: arrays[name][first:end] for name in "ac"} | {"b": arrays["b"][matrix]}
        if scale:
            of_a = arrays["scale_a"]
            own = of_a if scale == BY_TENSOR else of_a[first:end] if scale == BY_LINE else of_a[:, first:end]
            part |= {"scale_a": _aligned(own), "scale_b": _aligned(arrays["scale_b"][matrix])}
        default_product(of, part)


def _aligned(scales: Any) -> Any:
    """The scales from a multiple of 16 bytes on: cuBLASLt takes no others."""
    return scales if scales.flags.c_contiguous and scales.data.ptr % 16 == 0 else scales.copy()


@functools.lru_cache(KEPT_PRODUCTS)
def _default(problem: Problem, device: int) -> Sequence[Callable[[Mapping[str, int]], None]]:
    fused, rest = Epilogue.read(problem.epilogue).in_cublas
    of = replace(problem, epilogue=fused.text)
    names, behind = [tensor.name for tensor in of.tensors], [finishing(problem, rest)] if rest else []
    if not fused and problem.dtype in cublas.DATA_TYPES:
        return [lambda at: cublas.gemm_ex(of, *(at[name] for name in names)), *behind]
    name = "cublaslt_fp8" if problem.dtype in FLOAT8_DTYPES else "cublaslt"
    (kernel,) = _catalogue().of("gemm", "cuda", (name,))
    first, scalars = kernel.first_configs()[0], [scalar.value for scalar in of.scalars]
    product = PreparedProduct(render(kernel, of, first), of, scalars)
    stream = cupy.cuda.get_current_stream
    return [lambda at: product(stream().ptr, *(at[name] for name in names)), *behind]


def finishing(problem: Problem, rest: Epilogue) -> Callable[[Mapping[str, int]], None]:
    """A kernel that applies the rest of an epilogue to C in place."""
    elements = problem.m * problem.n
    grid, block = (min(-(-elements // _THREADS), _MOST_BLOCKS), 1, 1), (_THREADS, 1, 1)
    kernel = helper(element_wise_source(problem, rest), "finish")
    names, sizes = ("c", *rest.operands), (numpy.int64(elements), numpy.int32(problem.n))
    return lambda at: kernel(grid, block, (*(at[name] for name in names), *sizes), 0)
