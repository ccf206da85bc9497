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

from tuner.declare.epilogue import BY_BLOCK, E5M2, FLOAT8_DTYPES, MIXED, Epilogue
from tuner.declare.problem import EMULATED, IEEE, INT32_MAX, PRECISIONS, Problem
from tuner.devices.detect import is_spec
from tuner.errors import InputError, TunerError
from tuner.lookup.stale import builtin_now
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
ARGUMENTS = {"matmul": ("a", "b"), "gemv": ("a", "x"), "transpose": ("a",), "grouped": ("a", "b", "offsets")}
#: Rows of a group, at the most and in the mean, that are taken to decode where a call does not say.
DECODED_ROWS = 8


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
        argument: Name of the caller's array; ``result`` for a new one.
        turned: True where its transpose, or that of each matrix of a stack, is what lies row-major in memory,
            so that a view of it is passed.
        copied: Why a copy is passed (for an output: why the result is copied there); empty where none is.
        shape: Of the caller's array, its leading axes taken as one; None where it has no others than the
            problem's tensor.
        part: What is taken of the caller's array before: the rest repeats it; empty for all.
    """

    argument: str
    turned: bool = False
    copied: str = ""
    shape: tuple[int, ...] | None = None
    part: tuple[slice, ...] = ()

    def letter(self, transposed: bool = False) -> str:
        """Of a layout: ``n`` where the operand, or its transpose, is stored as it is used, else ``t``."""
        return "t" if self.turned != transposed else "n"

    def __str__(self) -> str:
        if self.argument == "result":
            return "a new array"
        name = f"the transpose of {self.argument}" if self.turned else self.argument
        flat = f" as one of {' x '.join(map(str, self.shape))}" if self.shape else ""
        return f"a copy of {name}{flat} ({self.copied})" if self.copied else f"{name}{flat} as it lies"


def placed(argument: str, operand: Operand, kept: int = 1, turns: bool = True) -> Placed:
    """How to hand an array to a kernel, which takes dense and aligned arrays only.

    Args:
        argument: Name of the array.
        operand: The array.
        kept: So many of its last axes stay what they are; those before are taken as one.
        turns: False where kernels read or write it row-major only.
    """
    flat, shape = operand.flat(kept), operand.rows(kept)
    shape_if_other = None if len(shape) == operand.ndim else shape
    if flat is None:
        return Placed(argument, copied="its leading dims are not one in memory", shape=shape)
    turned = not flat.is_row_major and flat.ndim > 1 and flat.turned.is_row_major
    if not (turned or flat.is_row_major):
        # The copy of an input keeps the order of the axes in memory, so that it reads in order.
        turned = flat.ndim > 1 and abs(flat.strides[-2]) < abs(flat.strides[-1])
        copied = f"strides {operand.strides} leave gaps, kernels take dense arrays"
    elif turned and not turns:
        copied = "it is column-major, and kernels take it row-major"
    else:
        copied = "" if operand.aligned else "it begins at an address that kernels cannot read"
    return Placed(argument, turned and turns, copied, shape_if_other)


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


@dataclass
class CallRequest:
    """What a call asks for.

    Attributes:
        function: One of `ARGUMENTS`.
        operands: The caller's arrays in words, by argument; those of an epilogue follow, ``out`` is the last.
        precision: Of a product in float32.
        invariant: Dim of the product whose size must not change the bits of a row; empty for none.
        bits: ``library`` for kernels alone that give the library's; empty for any.
        epilogue: What is done to the product.
        factors: Values of alpha and beta, where they are parts of the epilogue.
        distribution: How rows are spread over groups; empty where the call does not say.
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
    invariant: str = ""
    bits: str = ""
    epilogue: Epilogue = Epilogue()  # noqa: RUF009 - it does not change
    factors: Mapping[str, float] = field(default_factory=dict)
    distribution: str = ""
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
    def dtype(self) -> str:
        """The result's."""
        return self.epilogue.dtype(self.operands_dtype)

    @property
    def operands_dtype(self) -> str:
        """The problem's: of operands of two dtypes of 8 bits, that of which both may be."""
        return FLOAT8_DTYPES[0] if self.epilogue.mixed else next(iter(self.operands.values())).dtype

    @property
    def copied(self) -> tuple[Placed, ...]:
        """The tensors that need a copy."""
        return tuple(tensor for tensor in self.tensors if tensor.copied)


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
    request = CallRequest(function, operands, precision_of(precision) if function == "matmul" else IEEE, **how)
    if request.epilogue != request.epilogue.unscaled:
        request.operands = operands = {name: _of_eight(operand) for name, operand in operands.items()}
    pair = [operand.dtype for operand in operands.values() if operand.ndim == 2][:2]
    if function == "matmul" and sorted(pair) == [*FLOAT8_DTYPES, E5M2]:
        request.epilogue = replace(request.epilogue, mixed=MIXED[pair.index(E5M2)])
    _check(request)
    others = sorted({operand.dtype for operand in operands.values()} - set(EMULATED_DTYPES))
    if precision == EMULATED and others:
        raise InputError(
            f"matmul: precision {precision!r} is for float32, got {' and '.join(others)}; convert the arrays "
            f"with .astype('float32'), or use precision {IEEE!r}"
        )
    try:
        asked = {"transpose": _transposed, "grouped": _grouped}.get(function, _product)
        key, request.tensors = asked(request)
        _check_kernels(request, key)
    except (_ForTheLibraryError, TunerError) as error:
        request.why = str(error)
    else:
        request.problem = key
    return request


def _of_eight(operand: Operand) -> Operand:
    """CuPy holds 8-bit numbers as bytes: it has no such dtype."""
    is_held = operand.family == "CuPy" and operand.dtype == "uint8"
    return replace(operand, dtype=FLOAT8_DTYPES[0]) if is_held else operand


class _ForTheLibraryError(Exception):
    """No kernel computes a call; the message says why."""


def _check(request: CallRequest) -> None:
    """Refuses arrays that do not fit together, and sets the result's shape."""
    function, operands, out = request.function, request.operands, request.out
    devices = sorted({operand.device for operand in operands.values()})
    if len(devices) > 1:
        raise ValueError(
            f"{function}: all arrays are on one device, got {' and '.join(devices)}; copy one of them"
        )
    request.shape = shape = _result_shape(function, *(operands[name] for name in ARGUMENTS[function]))
    if out is not None and (out.shape != shape or not out.writable):
        wrong = "one that is read-only" if out.shape == shape else str(out.shape)
        raise ValueError(
            f"{function}: out is written and has the shape of the result, {shape}, got {wrong}; give another, "
            "or none to get a new array"
        )
    if not request.epilogue:
        return
    if len(shape) < 2:
        raise ValueError(f"matmul: an epilogue is for products that are matrices, got one of shape {shape}")
    scaled, a = request.epilogue != request.epilogue.unscaled, operands["a"].dtype
    if scaled and not request.epilogue.mixed and (a not in FLOAT8_DTYPES or operands["b"].dtype != a):
        raise TypeError(
            f"matmul: scales and dtype= are for two arrays of {FLOAT8_DTYPES[0]}, got {a}; leave them out"
        )
    for name in request.more:
        if name in ("c", "residual") and operands[name].shape != shape:
            raise ValueError(f"matmul: {name} has the shape of the result, {shape}, got {operands[name].shape}")
    dtypes = {one.dtype for name, one in operands.items() if name != "offsets"}
    others = sorted(dtype for dtype in dtypes if not dtype.lstrip("b").startswith("float"))
    if others:
        raise TypeError(
            f"matmul: an epilogue is for floating-point numbers, got {others[0]}; convert the arrays"
        )


def _result_shape(
    function: str, a: Operand, b: Operand | None = None, offsets: Operand | None = None
) -> tuple[int, ...]:
    if b is None:
        return a.shape[::-1]
    if offsets is not None:
        if (a.ndim, b.ndim) != (2, 3) or a.shape[1] != b.shape[1] or offsets.shape != b.shape[:1]:
            raise ValueError(
                f"{function}: the arrays have shapes (rows, k), (groups, k, n) and (groups,), where sizes of "
                f"one name are equal, got {a.shape}, {b.shape} and {offsets.shape}"
            )
        return a.shape[0], b.shape[2]
    inner = b.shape[-2:][:1]
    if not inner or a.shape[-1:] != inner or (function == "gemv" and (a.ndim, b.ndim) != (2, 1)):
        wanted = "(m, n) and (n,)" if function == "gemv" else "(..., m, k) or (k,) and (..., k, n) or (k,)"
        raise ValueError(
            f"{function}: the arrays have shapes {wanted}, where core dimensions of one name are equal, got "
            f"{a.shape} and {b.shape}"
        )
    batch = numpy.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return *batch, *a.shape[:-1][-1:], *(b.shape[-1:] if b.ndim > 1 else ())


def _product(request: CallRequest) -> tuple[ProblemKey, tuple[Placed, ...]]:
    """``a @ b``: gemm for two matrices, gemv for a matrix and a vector, bmm for stacks.

    Leading axes of `a` count as rows where `b` is one matrix, unless the matrices of `a` are transposed.
    """
    a, b = (request.operands[name] for name in ARGUMENTS[request.function])
    several, turned = math.prod(b.once.shape[:-2]) != 1, a.flat(1) is None and placed("a", a, 2).turned
    if min(a.ndim, b.ndim) > 1 and (several or turned or a.once != a):
        return _stacks(request, a, b)
    if several:
        raise _ForTheLibraryError("kernels multiply a vector by one matrix")
    left, right = placed("a", a), _whole(ARGUMENTS[request.function][1], b, 1)
    if a.ndim == b.ndim == 1:
        raise _ForTheLibraryError("a product of two vectors is one number, for which there is no kernel")
    (m, k), n = a.rows(1)[-2:] if a.ndim > 1 else (1, a.shape[0]), b.shape[-1]
    if a.ndim == 1:
        return _key(request, "gemv", right.letter(True), m=n, n=k), (right, left, _output(request, 0))
    if b.ndim == 1:
        return _key(request, "gemv", left.letter(), m=m, n=k), (left, right, _output(request, 0))
    to = _output(request, 1)
    if request.operands_dtype in FLOAT8_DTYPES:
        left, right = _along_k(left, False), _along_k(right, True)
    more = _further(request)
    return _key(request, "gemm", left.letter() + right.letter(), m=m, n=n, k=k), (left, right, *more, to)


def _along_k(operand: Placed, turned: bool) -> Placed:
    """An operand of 8 bits, of which tensor cores read terms that are neighbours."""
    if operand.turned == turned:
        return operand
    return replace(operand, turned=turned, copied="terms of 8-bit numbers lie side by side")


def _further(request: CallRequest) -> Iterator[Placed]:
    """An epilogue's arrays; scales of blocks are stored by k, so that rows' are neighbours."""
    for name in request.more:
        operand, turns = request.operands[name], request.epilogue.scale == BY_BLOCK and name.startswith("scale")
        to = placed(name, operand, max(1, operand.ndim - 1), turns)
        lies = to.turned or not turns
        yield to if lies else replace(to, turned=True, copied="scales of blocks lie column-major")


def _stacks(request: CallRequest, a: Operand, b: Operand) -> tuple[ProblemKey, tuple[Placed, ...]]:
    """``a @ b`` for stacks, whose leading axes are taken as one, and one matrix that all of a stack share.

    Rows of several A that share a B follow each other: they are one A.
    """
    left, right, a, b = _whole("a", a, 2), _whole("b", b, 2), a.once, b.once
    (m, k), n, lead, to = a.shape[-2:], b.shape[-1], request.shape[:-2], _output(request, 2)
    of_a, of_b = ((1,) * (len(lead) + 2 - one.ndim) + one.shape[:-2] for one in (a, b))
    sharing = next(at for at, size in enumerate((*of_b[::-1], 0)) if size != 1)
    if sharing and of_a == lead and a.is_row_major:
        lead, m = lead[:-sharing], m * math.prod(lead[-sharing:])
        of_a, of_b, rows = lead, of_b[:-sharing], (math.prod(lead), m)
        left, to = replace(left, shape=(*rows, k)), replace(to, shape=(*rows, n))
    if a.dtype in FLOAT8_DTYPES:
        left, right = _along_k(left, False), _along_k(right, True)
    batch, one = math.prod(lead), (1,) * len(lead)
    shared = {(one, lead): "-a", (lead, one): "-b", (lead, lead): ""}.get((of_a, of_b), "-")
    layout = left.letter() + right.letter() + shared
    if layout not in builtin_now().operation("bmm").layouts:
        raise _ForTheLibraryError("kernels take two stacks of one shape, or a stack and a matrix, at a time")
    key = _key(request, "bmm", layout, batch=batch, m=m, n=n, k=k)
    return key, (left, right, *_further(request), to)


def _whole(name: str, operand: Operand, kept: int) -> Placed:
    """As `placed`, without what repeats the operand; a matrix as a stack of one."""
    once = operand.once
    whole = placed(name, once, kept)
    part = tuple(slice(None if step else 1) for step in operand.strides[:-2]) if operand != once else ()
    shape = (1, *once.shape) if once.ndim == kept == 2 else whole.shape
    return replace(whole, shape=shape, part=part)


def _transposed(request: CallRequest) -> tuple[ProblemKey, tuple[Placed, ...]]:
    """A's transpose as an array of its own, for a matrix; other numbers of axes are the library's."""
    a = request.operands["a"]
    if a.ndim != 2:
        raise _ForTheLibraryError(f"kernels transpose two dimensions, got {a.ndim}")
    source = placed("a", a)
    if source.turned:
        raise _ForTheLibraryError("it lies in memory as its transpose would, so that a plain copy does it")
    return _key(request, "transpose", "", m=a.shape[0], n=a.shape[1]), (source, _output(request, 1))


def _grouped(request: CallRequest) -> tuple[ProblemKey, tuple[Placed, ...]]:
    """Rows of A by groups, each times its matrix of B; offsets say on the device where groups end."""
    a, b, offsets = (request.operands[name] for name in ARGUMENTS["grouped"])
    if offsets.dtype != "int32":
        raise _ForTheLibraryError(f"kernels take offsets of int32, got {offsets.dtype}")
    (rows, k), (groups, _, n) = a.shape, b.shape
    left, right = placed("a", a, turns=False), placed("b", b, 2)
    right = _along_k(right, True) if a.dtype in FLOAT8_DTYPES else right
    spread = request.distribution or ("decode" if rows <= DECODED_ROWS * groups else "uniform")
    layout = f"n{right.letter()}-{spread}"
    key = _key(request, "grouped", layout, rows=rows, n=n, k=k, groups=groups)
    return key, (left, right, placed("offsets", offsets), *_further(request), _output(request, 1))


def _output(request: CallRequest, kept: int) -> Placed:
    """Where the result goes, of which the last axes stay what they are."""
    if request.out is None:
        shape = request.shape
        rows = math.prod(shape[: len(shape) - kept]), *shape[len(shape) - kept :]
        return Placed("result", shape=None if len(shape) == len(rows) else rows)
    to = placed("out", request.out, kept, turns=False)
    return replace(to, copied="kernels write dense and aligned arrays") if to.copied else to


def _key(request: CallRequest, operation: str, layout: str, **dims: int) -> ProblemKey:
    dtype = request.operands_dtype
    emulated = operation in ("gemm", "bmm") and dtype in EMULATED_DTYPES
    precision, epilogue = request.precision if emulated else IEEE, request.epilogue.text
    return ProblemKey(operation, tuple(dims.items()), dtype, layout, precision, epilogue)


def problem_of(key: ProblemKey) -> Problem:
    """The problem that a key names, of a built-in operation.

    Raises:
        UnknownName: No such operation, dtype or layout.
        InputError: A dim that is missing or below 1; an epilogue or a precision that is not for it.
    """
    return key.of_operation(builtin_now().operation(key.operation))


def _check_kernels(request: CallRequest, key: ProblemKey) -> None:
    """Leaves to the library what is beyond kernels in arrays, dtypes and sizes."""
    dtypes = sorted({operand.dtype for name, operand in request.operands.items() if name != "offsets"})
    if key.dtype in FLOAT8_DTYPES:
        tensors = zip(request.tensors, problem_of(key).tensors, strict=True)
        given = [(tensor, request.operands.get(place.argument)) for place, tensor in tensors]
        dtypes = dtypes if any(own and own.dtype != tensor.dtype for tensor, own in given) else [key.dtype]
    own = next((operand.family for operand in request.operands.values() if not operand.plain), "")
    if own:
        raise _ForTheLibraryError(
            f"only {own} itself knows how to compute with such an array (subclass, gradient, host)"
        )
    if len(dtypes) > 1:
        raise _ForTheLibraryError(f"the arrays are of several dtypes ({', '.join(dtypes)}), which it converts")
    target = request.device.partition(":")[0] if is_spec(request.device) else ""
    kernels = builtin_now().serving(problem_of(key), target)
    if not kernels or max(key.dims.values()) > INT32_MAX:
        raise _ForTheLibraryError(f"no kernel computes {key} on {request.device}")
