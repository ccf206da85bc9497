"""What a call asks for, by NumPy's rules: a problem and where its tensors come from, or why it is none."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import numpy

from tuner.declare.epilogue import Epilogue
from tuner.declare.problem import EMULATED, IEEE, INT32_MAX, PRECISIONS
from tuner.devices.detect import is_on_host
from tuner.errors import InputError
from tuner.python.arrays import Family, Operand
from tuner.python.misses import checked
from tuner.results.record import ProblemKey

#: The environment variable that says what holds where nothing else does.
PRECISION_VARIABLE = "TUNER_PRECISION"
#: What calls that do not say it themselves are computed in; checked when a call is prepared.
PRECISION: ContextVar[str] = ContextVar("precision", default=os.environ.get(PRECISION_VARIABLE) or IEEE)
#: Dtypes of products that the emulated precision is for.
EMULATED_DTYPES = ("float32",)
#: Function -> names of its arrays.
ARGUMENTS = {"matmul": ("a", "b"), "gemv": ("a", "x"), "transpose": ("a",)}
#: Operation -> dtypes that its kernels compute in; on GPUs in others, too.
DTYPES = {
    "gemm": ("float32", "float64"),
    "gemv": ("float32", "float64"),
    "transpose": ("float32", "float64", "int32"),
}
GPU_DTYPES = {"gemm": ("float16", "bfloat16")}
#: Dtypes of products that kernels finish with an epilogue.
FINISHED = ("float32", "float16", "bfloat16")


@contextmanager
def precision(name: str) -> Iterator[None]:
    """Has products inside the ``with`` block computed in a precision, unless a call says another.

    It holds for the present thread (or asynchronous task). Products of other dtypes than float32 are not
    touched.

    Args:
        name: ``ieee``, products and sums in the dtype itself; or ``emulated``, any arithmetic that is as exact
            as the library's for the inputs at hand.

    Raises:
        UnknownName: No such precision.
    """
    token = PRECISION.set(checked(name, "precision", PRECISIONS))
    try:
        yield
    finally:
        PRECISION.reset(token)


def precision_of(called: str) -> str:
    """The precision of a call.

    Args:
        called: What the call says; empty where it says nothing.

    Raises:
        UnknownName: No such precision.
    """
    what = "precision" if called else f"precision in {PRECISION_VARIABLE}"
    return checked(called or PRECISION.get(), what, PRECISIONS)


@dataclass(frozen=True)
class Placed:
    """Where one tensor of a problem comes from.

    Attributes:
        argument: Name of the caller's array.
        turned: True where its transpose is what lies row-major in memory, so that a view of it is passed.
        copied: Why a copy is passed (for an output: why the result is copied there); empty where none is.
        shape: Of the caller's array, its leading axes taken as one; None where it has no others than the
            problem's tensor.
    """

    argument: str
    turned: bool = False
    copied: str = ""
    shape: tuple[int, ...] | None = None

    def letter(self, transposed: bool = False) -> str:
        """Of a layout: ``n`` where the operand, or its transpose, is stored as it is used, else ``t``."""
        return "t" if self.turned != transposed else "n"

    def __str__(self) -> str:
        if self.argument == "result":
            return "a new array"
        name = f"the transpose of {self.argument}" if self.turned else self.argument
        flat = f" as one of {' x '.join(map(str, self.shape))}" if self.shape else ""
        return f"a copy of {name}{flat} ({self.copied})" if self.copied else f"{name}{flat} as it lies"


def placed(argument: str, operand: Operand, written: bool = False) -> Placed:
    """How to hand an array of one or two axes to a kernel, which takes dense and aligned arrays only.

    Args:
        argument: Name of the array.
        operand: The array.
        written: True for an output.
    """
    unaligned = "" if operand.aligned else "it begins at an address that kernels cannot read"
    if operand.is_row_major:
        return Placed(argument, copied=unaligned)
    if operand.ndim == 2 and operand.turned.is_row_major:
        return Placed(argument, True, unaligned)
    # The copy of an input keeps the order of the axes in memory, so that it reads in order.
    across = operand.ndim == 2 and not written and abs(operand.strides[0]) < abs(operand.strides[1])
    return Placed(argument, across, f"strides {operand.strides} leave gaps, kernels take dense arrays")


@dataclass(frozen=True)
class PackedForm:
    """An operand in the form that a kernel packs it in.

    Attributes:
        memory: Where it lies.
        bytes: Its size.
        kernel: Name and source hash of the kernel, and what the form depends on beside it.
    """

    memory: Any
    bytes: int
    kernel: tuple[str, str, str]


@dataclass(frozen=True)
class CallRequest:
    """What a call asks for.

    Attributes:
        function: ``matmul``, ``gemv`` or ``transpose``.
        operands: The caller's arrays in words, by argument; those of an epilogue follow, ``out`` is the last.
        precision: Of a product in float32.
        epilogue: What is done to the product.
        factors: Values of alpha and beta, where they are parts of the epilogue.
        family: Library of the arrays; None for a call that is only explained.
        packed: The right operand as it was packed before; not used where the kernel packs otherwise.
        shape: Shape of the result.
        problem: What a kernel would compute; None where no kernel can.
        tensors: Where the problem's tensors come from, in its order; the last one is the output.
        why: Why no kernel can.
    """

    function: str
    operands: Mapping[str, Operand]
    precision: str = IEEE
    epilogue: Epilogue = Epilogue()  # noqa: RUF009 - it does not change
    factors: Mapping[str, float] = field(default_factory=dict)
    family: Family = field(default=None, repr=False)  # type: ignore[assignment]
    packed: PackedForm | None = None
    shape: tuple[int, ...] = ()
    problem: ProblemKey | None = None
    tensors: tuple[Placed, ...] = ()
    why: str = ""

    @property
    def out(self) -> Operand | None:
        """The array that the caller has written."""
        return self.operands.get("out")

    @property
    def inputs(self) -> list[str]:
        """Names of the arrays that are read, in the order in which a prepared call takes them."""
        return [name for name in self.operands if name != "out"]

    @property
    def more(self) -> list[str]:
        """Names of the arrays that the epilogue reads."""
        return self.inputs[len(ARGUMENTS[self.function]) :]

    @property
    def device(self) -> str:
        """``cpu`` or ``cuda:0``."""
        return next(iter(self.operands.values())).device

    @property
    def copied(self) -> tuple[Placed, ...]:
        """The tensors that need a copy."""
        return tuple(tensor for tensor in self.tensors if tensor.copied)

    @property
    def copied_bytes(self) -> int:
        """Bytes of those copies."""
        return sum(self.operands[tensor.argument].bytes for tensor in self.copied)


def request_of(
    function: str, family: Family, arrays: Mapping[str, Any], out: Any, precision: str = "", **how: Any
) -> CallRequest:
    """What a call with arrays of one library asks for; see `request_for`."""
    given = dict(arrays) if out is None else {**arrays, "out": out}
    operands = {name: family.operand(array) for name, array in given.items()}
    return request_for(function, operands, precision, family=family, **how)


def request_for(function: str, operands: Mapping[str, Operand], precision: str = "", **how: Any) -> CallRequest:
    """What a call with such arrays asks for.

    Args:
        function: One of `ARGUMENTS`.
        operands: The arrays, as `CallRequest` has them.
        precision: As the call says it; empty for the surrounding one.
        how: Further attributes of `CallRequest`.

    Raises:
        ValueError: Shapes, devices or an `out` that are not possible.
        TypeError: An epilogue of numbers that are whole or complex.
        UnknownName: No such precision.
        InputError: The call itself asks for a precision that is not for its arrays.
    """
    used = precision_of(precision) if function == "matmul" else IEEE
    request = CallRequest(function, operands, used, **how)
    devices = sorted({operand.device for operand in operands.values()})
    if len(devices) > 1:
        raise ValueError(
            f"{function}: all arrays are on one device, got {' and '.join(devices)}; copy one of them"
        )
    if request.out is not None and not request.out.writable:
        raise ValueError(f"{function}: out is written, got an array that is read-only; give another")
    made = _transpose(request) if function == "transpose" else _product(request)
    others = sorted({operand.dtype for operand in operands.values()} - set(EMULATED_DTYPES))
    if precision == EMULATED and others:
        raise InputError(
            f"matmul: precision {precision!r} is for float32, got {' and '.join(others)}; convert the arrays "
            f"with .astype('float32'), or use precision {IEEE!r}"
        )
    return made


def _product(request: CallRequest) -> CallRequest:
    """``a @ b``: gemm for two matrices, gemv for a matrix and a vector; stacks of products are the library's.

    Leading axes of `a` count as rows where they are one axis in memory.
    """
    function, (left, right) = request.function, ARGUMENTS[request.function]
    a, b = request.operands[left], request.operands[right]
    if function == "gemv" and (a.ndim, b.ndim) != (2, 1):
        raise ValueError(
            f"gemv: a has two dimensions and x one, got a of shape {a.shape} and x of shape {b.shape}; "
            "for other products use matmul"
        )
    for name, operand in ((left, a), (right, b)):
        if not operand.ndim:
            raise ValueError(
                f"matmul: operands have at least one dimension, got {name} of shape (); multiply by a scalar "
                "with *"
            )
    inner = b.shape[-2] if b.ndim > 1 else b.shape[0]
    if a.shape[-1] != inner:
        raise ValueError(
            f"{function}: the last dimension of a and the {'last but one' if b.ndim > 1 else 'only one'} of "
            f"{right} are summed over (core dimension {'n' if function == 'gemv' else 'k'}) and must be equal, "
            f"got a of shape {a.shape} and {right} of shape {b.shape}: {a.shape[-1]} and {inner}"
        )
    batch = numpy.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    request = replace(request, shape=(*batch, *a.shape[:-1][-1:], *(b.shape[-1:] if b.ndim > 1 else ())))
    if request.epilogue:
        _check_epilogue(request)
    _check_out(request)
    if math.prod(b.shape[:-2]) != 1:
        return replace(
            request, why="kernels compute one product; a stack of them is the library's, in one call"
        )
    if a.ndim == b.ndim == 1:
        return replace(request, why="a product of two vectors is one number, for which there is no kernel")
    flat_a, flat_b = a.flat(1), replace(b, shape=b.shape[-2:], strides=b.strides[-2:])
    if flat_a is None:
        return replace(request, why="the leading dims of a are not one in memory, as the rows of a matrix are")
    if a.ndim == 1:
        return _gemv(request, (right, flat_b), (left, a), transposed=True)
    if b.ndim == 1:
        return _gemv(request, (left, flat_a), (right, b))
    return _gemm(request, flat_a, flat_b)


def _check_epilogue(request: CallRequest) -> None:
    shape = request.shape
    if len(shape) < 2:
        raise ValueError(f"matmul: an epilogue is for products that are matrices, got one of shape {shape}")
    for name in request.more:
        if name != "bias" and request.operands[name].shape != shape:
            wrong = request.operands[name].shape
            raise ValueError(f"matmul: {name} has the shape of the result, {shape}, got {wrong}")
    dtypes = {operand.dtype for operand in request.operands.values()}
    others = sorted(dtype for dtype in dtypes if not dtype.lstrip("b").startswith("float"))
    if others:
        raise TypeError(
            f"matmul: an epilogue is for floating-point numbers, got {others[0]}; convert the arrays"
        )


def _transpose(request: CallRequest) -> CallRequest:
    """A's transpose as an array of its own, for a matrix; other numbers of axes are the library's."""
    a, out = request.operands["a"], request.out
    request = replace(request, shape=a.shape[::-1])
    _check_out(request)
    if out is not None and out.dtype != a.dtype:
        return replace(request, why=f"a is {a.dtype} and out {out.dtype}, which the library converts")
    if a.ndim != 2:
        return replace(request, why=f"kernels transpose two dimensions, got {a.ndim}")
    source, to = placed("a", a), _output(request, 1)
    if source.turned or to.turned:
        return replace(request, why="it lies in memory as its transpose would, so that a plain copy does it")
    return _as_problem(request, "transpose", {"m": a.shape[0], "n": a.shape[1]}, "", source, to)


def _check_out(request: CallRequest) -> None:
    if request.out is not None and request.out.shape != request.shape:
        raise ValueError(
            f"{request.function}: out has the shape of the result, {request.shape}, got {request.out.shape}; "
            "leave it away to get a new array"
        )


def _gemm(request: CallRequest, a: Operand, b: Operand) -> CallRequest:
    """A column-major result is the row-major one of the transposed product."""
    left, right, to = _flat(request, "a", a), _flat(request, "b", b), _output(request, 1)
    (m, k), n = a.shape, b.shape[1]
    if to.turned and not request.epilogue:
        layout = right.letter(transposed=True) + left.letter(transposed=True)
        return _as_problem(request, "gemm", {"m": n, "n": m, "k": k}, layout, right, left, to)
    if to.turned:
        to = replace(to, turned=False, copied="kernels with an epilogue write row-major arrays")
    more = [_further(request, name) for name in request.more]
    layout = left.letter() + right.letter()
    return _as_problem(request, "gemm", {"m": m, "n": n, "k": k}, layout, left, right, *more, to)


def _gemv(
    request: CallRequest, matrix: tuple[str, Operand], vector: tuple[str, Operand], transposed: bool = False
) -> CallRequest:
    m, n = matrix[1].shape[:: -1 if transposed else 1]
    stored, to = _flat(request, *matrix), _output(request, 0)
    return _as_problem(
        request, "gemv", {"m": m, "n": n}, stored.letter(transposed), stored, placed(*vector), to
    )


def _flat(request: CallRequest, name: str, operand: Operand) -> Placed:
    """An array whose leading axes are taken as one."""
    own = request.operands[name]
    return replace(placed(name, operand), shape=None if own.ndim == operand.ndim else operand.shape)


def _further(request: CallRequest, name: str) -> Placed:
    """A further array, which kernels read row-major."""
    own = request.operands[name]
    flat = own if name == "bias" else own.flat(1)
    if flat is None:
        shape = math.prod(own.shape[:-1]), own.shape[-1]
        return Placed(name, copied="its leading dims are not one in memory", shape=shape)
    tensor = _flat(request, name, flat)
    if not tensor.turned:
        return tensor
    why = tensor.copied or "it is column-major, and kernels read it row-major"
    return replace(tensor, turned=False, copied=why)


def _output(request: CallRequest, axes: int) -> Placed:
    """Where the result goes, of which the last `axes` stay what they are."""
    shape = request.shape
    flat_shape = (math.prod(shape[: len(shape) - axes]), *shape[len(shape) - axes :])
    kept = None if len(shape) == axes + 1 else flat_shape
    if request.out is None:
        return Placed("result", shape=kept)
    flat = request.out.flat(axes)
    if flat is None or (to := placed("out", flat, written=True)).copied:
        return Placed("out", copied="kernels write dense and aligned arrays", shape=kept)
    return replace(to, shape=kept)


def _as_problem(
    request: CallRequest, operation: str, dims: Mapping[str, int], layout: str, *tensors: Placed
) -> CallRequest:
    """The request with its problem, unless dtype or sizes are beyond what kernels take."""
    operands = request.operands.values()
    dtypes = {operand.dtype for operand in operands}
    known = DTYPES[operation] + (() if is_on_host(request.device) else GPU_DTYPES.get(operation, ()))
    own = next((operand.family for operand in operands if not operand.plain), "")
    if own:
        why = f"only {own} itself knows how to compute with such an array (subclass, gradient, host)"
    elif len(dtypes) > 1:
        why = f"the arrays are of several dtypes ({', '.join(sorted(dtypes))}), which the library converts"
    elif (dtype := dtypes.pop()) not in known:
        why = f"kernels compute in {' and '.join(known)}, the arrays are {dtype}"
    elif request.epilogue and dtype not in FINISHED:
        why = f"kernels with an epilogue compute in {' and '.join(FINISHED)}"
    elif min(dims.values()) < 1:
        why = "a dimension is empty, so that there is nothing to compute"
    elif max(dims.values()) > INT32_MAX:
        why = f"kernels count up to {INT32_MAX}"
    else:
        precision = request.precision if operation == "gemm" and dtype in EMULATED_DTYPES else IEEE
        problem = ProblemKey(operation, tuple(dims.items()), dtype, layout, precision, request.epilogue.text)
        return replace(request, problem=problem, tensors=tensors)
    return replace(request, why=why)
