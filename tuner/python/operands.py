"""What a call asks for, by NumPy's rules: a problem and where its tensors come from, or why it is none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy

from tuner.declare.epilogue import Epilogue
from tuner.declare.problem import INT32_MAX
from tuner.devices.detect import is_on_host
from tuner.python.arrays import Family, Operand
from tuner.python.policy import EMULATED_DTYPES, check_dtypes
from tuner.results.record import ProblemKey


@dataclass(frozen=True)
class Placed:
    """Where one tensor of a problem comes from.

    Attributes:
        argument: Name of the caller's array.
        turned: True where its transpose is what lies row-major in memory, so that a view of it is passed.
        copied: Why a copy is passed (for an output: why the result is copied there); empty where none is.
    """

    argument: str
    turned: bool = False
    copied: str = ""

    def __str__(self) -> str:
        if self.argument == "result":
            return "a new array"
        said = f"the transpose of {self.argument}" if self.turned else self.argument
        return f"a copy of {said} ({self.copied})" if self.copied else f"{said} as it lies"


def is_row_major(operand: Operand) -> bool:
    """Whether elements lie in order and without gaps; axes of size 1 may have any stride."""
    expected = operand.itemsize
    for size, step in zip(reversed(operand.shape), reversed(operand.strides), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


def is_dense(operand: Operand) -> bool:
    """Whether elements lie without gaps, row-major or column-major."""
    return is_row_major(operand) or is_row_major(turned(operand))


def turned(operand: Operand) -> Operand:
    """The transposed view of two axes."""
    return Operand(
        operand.family, operand.shape[::-1], operand.strides[::-1], operand.dtype, operand.itemsize,
        operand.device, operand.aligned, operand.writable, operand.plain,
    )  # fmt: skip


def placed(argument: str, operand: Operand) -> Placed:
    """How to hand an array of one or two axes to a kernel, which takes dense and aligned arrays only."""
    if is_row_major(operand):
        return Placed(argument, copied=_why_unaligned(operand))
    if operand.ndim == 2 and is_row_major(turned(operand)):
        return Placed(argument, True, _why_unaligned(operand))
    # The copy keeps the order of the axes in memory, so that it reads in order.
    across = operand.ndim == 2 and abs(operand.strides[0]) < abs(operand.strides[1])
    return Placed(argument, across, f"strides {operand.strides} leave gaps, kernels take dense arrays")


def _why_unaligned(operand: Operand) -> str:
    return "" if operand.aligned else "it begins at an address that kernels cannot read"


def letter(of: Placed) -> str:
    """``n`` where an operand is stored as it is used, ``t`` where its transpose is."""
    return "t" if of.turned else "n"


def flipped(of: Placed) -> str:
    """The letter of the operand's transpose."""
    return "n" if of.turned else "t"


#: Operation -> dtypes that its kernels compute in; on GPUs in others, too.
DTYPES = {
    "gemm": ("float32", "float64"),
    "gemv": ("float32", "float64"),
    "transpose": ("float32", "float64", "int32"),
}
GPU_DTYPES = {"gemm": ("float16", "bfloat16")}
#: Dtypes of products that kernels finish with an epilogue.
FINISHED = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class CallRequest:
    """What a call asks for.

    Attributes:
        function: ``matmul``, ``gemv`` or ``transpose``.
        shape: Shape of the result.
        operands: The caller's arrays in words, by argument.
        problem: What a kernel would compute; None where no kernel can.
        tensors: Where the problem's tensors come from, in its order; the last one is the output.
        why: Why no kernel can.
    """

    function: str
    shape: tuple[int, ...]
    operands: dict[str, Operand]
    problem: ProblemKey | None = None
    tensors: tuple[Placed, ...] = ()
    why: str = ""

    def in_precision(self, precision: str, asked: str) -> CallRequest:
        """The request in a precision, where it is one that the precision is for.

        Args:
            precision: That of the call.
            asked: The same where the call itself says it; else empty.

        Raises:
            InputError: The call itself asks for a precision that is not for its arrays.
        """
        check_dtypes(asked, {each.dtype for each in self.operands.values()})
        problem = self.problem
        if problem is None or problem.operation != "gemm" or problem.dtype not in EMULATED_DTYPES:
            return self
        return replace(self, problem=replace(problem, precision=precision))

    @property
    def device(self) -> str:
        """``cpu`` or ``cuda:0``."""
        return next(iter(self.operands.values())).device

    @property
    def copied(self) -> tuple[Placed, ...]:
        """The tensors that need a copy."""
        return tuple(each for each in self.tensors if each.copied)

    @property
    def copied_bytes(self) -> int:
        """Bytes of those copies."""
        return sum(self._bytes(each) for each in self.copied)

    def _bytes(self, of: Placed) -> int:
        return self.operands[of.argument].bytes


def matmul_request(a: Operand, b: Operand, out: Operand | None) -> CallRequest:
    """``a @ b``: gemm for two matrices, gemv for a matrix and a vector; all else is the library's.

    Raises:
        ValueError: An operand without axes, or inner sizes that differ.
    """
    operands = _named(a=a, b=b, out=out)
    if not a.ndim or not b.ndim:
        name, scalar = ("a", a) if not a.ndim else ("b", b)
        raise ValueError(
            f"matmul: operands have at least one dimension, got {name} of shape {scalar.shape}; "
            "multiply by a scalar with *"
        )
    inner = b.shape[-2] if b.ndim > 1 else b.shape[0]
    if a.shape[-1] != inner:
        raise ValueError(
            "matmul: the last dimension of a and the "
            f"{'last but one of b' if b.ndim > 1 else 'only one of b'} are summed over (core dimension k) and "
            f"must be equal, got a of shape {a.shape} and b of shape {b.shape}: {a.shape[-1]} and {inner}"
        )
    batch = numpy.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*batch, *a.shape[:-1][-1:], *(b.shape[-1:] if b.ndim > 1 else ()))
    request = CallRequest("matmul", shape, operands)
    if a.ndim > 2 or b.ndim > 2 or (out is not None and out.ndim > 2):
        return replace(request, why="kernels compute one product, not a batch of them")
    _check_out(request, out)
    if a.ndim == b.ndim == 1:
        return replace(request, why="a product of two vectors is one number, for which there is no kernel")
    if a.ndim == 1:
        return _gemv(request, placed("b", b), placed("a", a), transposed=True)
    if b.ndim == 1:
        return _gemv(request, placed("a", a), placed("b", b))
    return _gemm(request, a, b, out)


def check_places(function: str, operands: Iterable[Operand], out: Operand | None) -> None:
    """Checks where the arrays of a call lie.

    Raises:
        ValueError: They lie on several devices, or `out` may only be read.
    """
    devices = sorted({each.device for each in (*operands, *([out] if out else []))})
    if len(devices) > 1:
        raise ValueError(
            f"{function}: all arrays are on one device, got {' and '.join(devices)}; copy one of them"
        )
    if out is not None and not out.writable:
        raise ValueError(f"{function}: out is written, got an array that is read-only; give another")


def finished_request(request: CallRequest, epilogue: Epilogue, more: Mapping[str, Operand]) -> CallRequest:
    """A product's request with an epilogue.

    Args:
        request: The product's.
        epilogue: What is done to its result.
        more: The further arrays by argument, in a kernel's order; a bias is a vector.

    Raises:
        ValueError: The product is no matrix, or `c` or `residual` have another shape.
        TypeError: The numbers are whole or complex.
    """
    shape = request.shape
    if len(shape) < 2:
        raise ValueError(f"matmul: an epilogue is for products that are matrices, got one of shape {shape}")
    for name, each in more.items():
        if name != "bias" and each.shape != shape:
            raise ValueError(f"matmul: {name} has the shape of the result, {shape}, got {each.shape}")
    operands = {name: each for name, each in request.operands.items() if name != "out"} | dict(more)
    operands |= {name: each for name, each in request.operands.items() if name == "out"}
    dtypes = {each.dtype for each in operands.values()}
    others = sorted(each for each in dtypes if not each.lstrip("b").startswith("float"))
    if others:
        raise TypeError(
            f"matmul: an epilogue is for floating-point numbers, got {others[0]}; convert the arrays"
        )
    made = replace(request, operands=operands)
    if request.problem is None or request.problem.operation != "gemm":
        return replace(made, problem=None)
    made = _as_problem(made, "gemm", request.problem.shape, request.problem.layout, request.tensors)
    if made.problem is None or made.problem.dtype not in FINISHED:
        known = " and ".join(FINISHED)
        return replace(made, problem=None, why=made.why or f"kernels with an epilogue compute in {known}")
    a, b, out = request.tensors
    tensors = (a, b, *(_as_it_lies(name, each) for name, each in more.items()), out)
    return replace(made, problem=replace(made.problem, epilogue=epilogue.text), tensors=tensors)


def is_written_directly(out: Operand) -> bool:
    """Whether a kernel may write a caller's array as it lies, row-major."""
    return is_row_major(out) and out.aligned


def _as_it_lies(name: str, operand: Operand) -> Placed:
    """A further array, which kernels read row-major."""
    found = placed(name, operand)
    if not found.turned:
        return found
    return Placed(name, copied=found.copied or "it is column-major, and kernels read it row-major")


def gemv_request(a: Operand, x: Operand, out: Operand | None) -> CallRequest:
    """``a @ x`` for a matrix and a vector.

    Raises:
        ValueError: Not a matrix and a vector, or sizes that differ.
    """
    if (a.ndim, x.ndim) != (2, 1):
        raise ValueError(
            f"gemv: a has two dimensions and x one, got a of shape {a.shape} and x of shape {x.shape}; "
            "for other products use matmul"
        )
    if a.shape[1] != x.shape[0]:
        raise ValueError(
            "gemv: a has as many columns as x has elements (core dimension n), got a of shape "
            f"{a.shape} and x of shape {x.shape}: {a.shape[1]} and {x.shape[0]}"
        )
    request = CallRequest("gemv", a.shape[:1], _named(a=a, x=x, out=out))
    _check_out(request, out)
    return _gemv(request, placed("a", a), placed("x", x))


def transpose_request(a: Operand, out: Operand | None) -> CallRequest:
    """A's transpose as an array of its own, for a matrix; other numbers of axes are the library's.

    Raises:
        ValueError: An `out` of another shape.
    """
    request = CallRequest("transpose", a.shape[::-1], _named(a=a, out=out))
    _check_out(request, out)
    if out is not None and out.dtype != a.dtype:
        return replace(request, why=f"a is {a.dtype} and out {out.dtype}, which the library converts")
    if a.ndim != 2:
        return replace(request, why=f"kernels transpose two dimensions, got {a.ndim}")
    source, to = placed("a", a), _output(request)
    if source.turned or to.turned:
        return replace(request, why="it lies in memory as its transpose would, so that a plain copy does it")
    return _as_problem(request, "transpose", (("m", a.shape[0]), ("n", a.shape[1])), "", (source, to))


def _named(**operands: Operand | None) -> dict[str, Operand]:
    return {name: operand for name, operand in operands.items() if operand is not None}


def _check_out(request: CallRequest, out: Operand | None) -> None:
    if out is not None and out.shape != request.shape:
        raise ValueError(
            f"{request.function}: out has the shape of the result, {request.shape}, got {out.shape}; "
            "leave it away to get a new array"
        )


def _gemm(request: CallRequest, a: Operand, b: Operand, out: Operand | None) -> CallRequest:
    """A column-major result is the row-major one of the transposed product."""
    left, right, to = placed("a", a), placed("b", b), _output(request)
    (m, k), n = a.shape, b.shape[1]
    if to.turned:
        layout = flipped(right) + flipped(left)
        return _as_problem(request, "gemm", (("m", n), ("n", m), ("k", k)), layout, (right, left, to))
    layout = letter(left) + letter(right)
    return _as_problem(request, "gemm", (("m", m), ("n", n), ("k", k)), layout, (left, right, to))


def _gemv(request: CallRequest, matrix: Placed, vector: Placed, transposed: bool = False) -> CallRequest:
    rows, columns = request.operands[matrix.argument].shape
    m, n = (columns, rows) if transposed else (rows, columns)
    layout = flipped(matrix) if transposed else letter(matrix)
    return _as_problem(request, "gemv", (("m", m), ("n", n)), layout, (matrix, vector, _output(request)))


def _output(request: CallRequest) -> Placed:
    out = request.operands.get("out")
    if out is None:
        return Placed("result")
    if is_row_major(out) and out.aligned:
        return Placed("out")
    if out.ndim == 2 and is_row_major(turned(out)) and out.aligned:
        return Placed("out", True)
    return Placed("out", copied="kernels write dense and aligned arrays")


def _as_problem(
    request: CallRequest,
    operation: str,
    shape: tuple[tuple[str, int], ...],
    layout: str,
    tensors: tuple[Placed, ...],
) -> CallRequest:
    """The request with its problem, unless dtype or sizes are beyond what kernels take."""
    operands = request.operands.values()
    dtypes = {operand.dtype for operand in operands}
    known = DTYPES[operation] + (() if is_on_host(request.device) else GPU_DTYPES.get(operation, ()))
    if not all(operand.plain for operand in operands):
        said = next(operand for operand in operands if not operand.plain)
        why = f"only {said.family} itself knows how to compute with such an array (subclass, gradient, host)"
    elif len(dtypes) > 1:
        why = f"the arrays are of several dtypes ({', '.join(sorted(dtypes))}), which the library converts"
    elif (dtype := dtypes.pop()) not in known:
        why = f"kernels compute in {' and '.join(known)}, the arrays are {dtype}"
    elif min(size for _, size in shape) < 1:
        why = "a dimension is empty, so that there is nothing to compute"
    elif max(size for _, size in shape) > INT32_MAX:
        why = f"kernels count up to {INT32_MAX}"
    else:
        problem = ProblemKey(operation, shape, dtype, layout)
        return replace(request, problem=problem, tensors=tensors)
    return replace(request, why=why)


#: Function -> what names its arrays, and what their request is.
ARGUMENTS = {"matmul": ("a", "b"), "gemv": ("a", "x"), "transpose": ("a",)}
REQUESTS: dict[str, Callable[..., CallRequest]] = {
    "matmul": matmul_request, "gemv": gemv_request, "transpose": transpose_request,
}  # fmt: skip


def request_of(function: str, family: Family, arrays: tuple[Any, ...], out: Any) -> CallRequest:
    """What a call asks for.

    Raises:
        ValueError: Shapes, devices or an `out` that are not possible.
    """
    operands = [family.operand(array) for array in arrays]
    to = None if out is None else family.operand(out)
    check_places(function, operands, to)
    return REQUESTS[function](*operands, to)
