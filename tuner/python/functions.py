"""`matmul`, `gemv`, `transpose` and `pack`: from a call to the prepared call that it is.

The first call with arrays of some kind looks its problem up, compiles and prepares; every later one finds what
was prepared in a dict, by what is cheap to read of the arrays. That takes no lock; preparing takes one, so that
nothing is compiled twice.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypedDict, Unpack

from tuner.declare.epilogue import (
    ACTIVATIONS,
    BY_BLOCK,
    BY_LINE,
    BY_TENSOR,
    COLUMN,
    RESULTS,
    SCALE_BLOCK,
    Epilogue,
)
from tuner.declare.problem import EMULATED, IEEE
from tuner.errors import InputError
from tuner.lookup.stale import builtin_now
from tuner.python import arrays as families
from tuner.python import decisions, misses, requests
from tuner.python.arrays import FOUND_OF, KEY_OF, Family, as_array, family_of
from tuner.python.calls import Prepared, packed_form, prepared_call
from tuner.python.decisions import LOCK, warn_once
from tuner.python.requests import PRECISION, PackedForm
from tuner.python.running import key_of

#: Precision -> prepared products.
_matmul: dict[str, dict[Hashable, Prepared]] = {IEEE: {}, EMULATED: {}}
_gemv: dict[Hashable, Prepared] = {}
_transpose: dict[Hashable, Prepared] = {}
#: Type of arrays -> what may run products of two such without Python; `tuner.torch` knows PyTorch's.
NATIVE: dict[type, Callable[..., Any]] = {}
#: How rows are spread over groups, maybe with scales and a dtype -> prepared products.
_grouped: dict[Hashable, dict[Hashable, Prepared]] = {}
#: Dtype of a result -> the part of an epilogue that says it.
_TO = {"": ""} | {dtype: word for word, dtype in RESULTS.items()}
#: Parts and factors of an epilogue -> prepared products with it.
_finished: dict[Hashable, dict[Hashable, Prepared]] = {}


class Finish(TypedDict, total=False):
    """What is done to a product: ``activation(alpha * a @ b + beta * c + bias) + residual``.

    Attributes:
        scale_a: Of 8-bit numbers, float32: one for all, shape (1,); for each row, (..., M); or for blocks of
            128 terms, (..., M, ceil(K / 128)), best column-major.
        scale_b: Likewise, for each matrix of a stack: (...) or (1,); (..., N); or for blocks of 128 x 128,
            (..., ceil(K / 128), ceil(N / 128)), best column-major.
        dtype: Of a product of 8-bit numbers: ``bfloat16`` unless given, ``float16`` or ``float32``.
        bias: Shape (N,) or (1, N): an element for each column; shape (M, 1): one for each row.
        activation: ``relu``, ``gelu`` (by erf), ``gelu-tanh`` (its approximation) or ``silu``.
        alpha: A number; 1 unless given.
        beta: A number; 1 unless given, where `c` is.
        c: Shape (M, N).
        residual: Shape (M, N), added last.
    """

    scale_a: Any
    scale_b: Any
    dtype: str
    bias: Any
    activation: str
    alpha: float
    beta: float
    c: Any
    residual: Any


def matmul(
    a: Any, b: Any, out: Any = None, *, precision: str = "", invariant: str = "", bits: str = "",
    **finish: Unpack[Finish],
) -> Any:  # fmt: skip
    """The product of two arrays, by the kernel that was measured to be fastest, or the library where it is.

    Args:
        a: Array of NumPy, CuPy or PyTorch, or of a library that shares its memory by DLPack or the CUDA array
            interface. Shape (M, K); one axis, or more than two, as `numpy.matmul` has them.
        b: Of the same library, on the same device. Shape (K, N). Or what `tuner.pack` made of such an array.
        out: Where to put the result, of shape (M, N); a new array unless given. May overlap `a` and `b`.
        precision: ``ieee``, products and sums in the dtype itself; or ``emulated``, any arithmetic that is as
            exact as the library's for the inputs at hand, for float32. Empty: that of the surrounding
            `tuner.precision`, else of the environment's TUNER_PRECISION, else ``ieee``.
        invariant: ``m`` for a row of the result with the same bits for any number of rows, by the configs of
            ``tuner tune gemm --invariant m``; never by the library. `b` is an array, and `finish` empty.
        bits: ``library`` for the library, or a kernel that was measured to give the same bits.
        finish: What is done to the product before it is stored: ``activation(alpha * a @ b + beta * c + bias)
            + residual``, by arguments of these names; see `Finish`.

    Returns:
        The result, an array of the same library, or `out`. On a GPU it is queued on the library's current
        stream.

    Raises:
        ValueError: Shapes that do not fit together, several devices, an `out` that cannot be written.
        TypeError: What is no array, or arrays of several libraries.
        UnknownName: No such precision or bits, or policy in the environment (`tuner.on_miss`).
        InputError: `precision` is ``emulated``, or `b` packed, and an array is not float32; or `b` is packed,
            and there is more to do than to multiply; or `invariant` is not for such a product.
        NothingFound: `invariant` is given, and no configs are known, or not for as many rows.
    """
    if finish or bits or invariant:
        return _product(a, b, out, precision, (bits, invariant), **finish)
    if (native := NATIVE.get(type(a))) is not None and (result := native(a, b, out, precision)) is not None:
        return result
    return run_product(a, b, out, precision)


def run_product(a: Any, b: Any, out: Any, precision: str) -> Any:
    """As `matmul` of two arrays alone, by Python.

    Args:
        a: As of `matmul`.
        b: As of `matmul`.
        out: As of `matmul`.
        precision: As of `matmul`.
    """
    try:
        call = FOUND_OF[type(a)](_matmul[precision or PRECISION.get()], a, b, out)
    except (KeyError, AttributeError, TypeError, RuntimeError):
        if isinstance(b, Packed):
            return b.product(a, out, precision)
        kept = _matmul[requests.precision_of(precision)]
        arrays = {"a": as_array(a), "b": as_array(b)}
        return _first("matmul", arrays, out, kept, precision)
    return call(a, b, out)


def gemv(a: Any, x: Any, out: Any = None) -> Any:
    """The product of a matrix and a vector; see `matmul`.

    Args:
        a: Shape (M, N).
        x: Shape (N,).
        out: Shape (M,); a new array unless given.

    Returns:
        The result, or `out`.

    Raises:
        ValueError: As for `matmul`.
        TypeError: As for `matmul`.
    """
    try:
        call = FOUND_OF[type(a)](_gemv, a, x, out)
    except (KeyError, AttributeError, TypeError, RuntimeError):
        return _first("gemv", {"a": as_array(a), "x": as_array(x)}, out, _gemv)
    return call(a, x, out)


def transpose(a: Any, out: Any = None) -> Any:
    """An array's transpose as a row-major array of its own, not as a view; see `matmul`.

    Args:
        a: Shape (M, N); other numbers of axes are turned round as `numpy.transpose` does.
        out: Shape (N, M); a new array unless given.

    Returns:
        The result, or `out`.

    Raises:
        ValueError: As for `matmul`.
        TypeError: As for `matmul`.
    """
    try:
        if out is None:
            call = _transpose[KEY_OF[type(a)](a)]
        else:
            call = _transpose[KEY_OF[type(a)](a), KEY_OF[type(out)](out)]
    except (KeyError, AttributeError, TypeError, RuntimeError):
        return _first("transpose", {"a": as_array(a)}, out, _transpose)
    return call(a, out)


def grouped(
    a: Any, b: Any, offsets: Any, out: Any = None, *, distribution: str = "", scale_a: Any = None,
    scale_b: Any = None, dtype: str = "",
) -> Any:  # fmt: skip
    """The products of rows in groups, each with a matrix of its own: a layer of a mixture of experts.

    Kernels read the offsets where they lie: no number of rows is brought to the host.

    Args:
        a: Shape (rows, K), of NumPy, CuPy or PyTorch; the rows of a group follow each other.
        b: Shape (groups, K, N), of the same dtype; transposes of (groups, N, K) are taken as they lie.
        offsets: Shape (groups,), int32, on the same device: where each group ends. They never descend, and are
            no more than `rows`. A group may have no rows.
        out: Shape (rows, N); a new array unless given. Rows from the last offset on are not written.
        distribution: How rows are spread, by which a kernel is chosen; each is right for all. ``uniform``,
            ``zipf``, ``hot`` (half of the rows in one group) or ``decode`` (1 to 8 rows each). Empty for
            ``decode`` where there are no more than 8 rows a group, else ``uniform``.
        scale_a: Of 8-bit numbers (e4m3), as of `Finish`.
        scale_b: Likewise, for each group: shape (groups,), (groups, N), or (groups, ceil(K / 128),
            ceil(N / 128)), best with the last two axes transposed in memory.
        dtype: As of `Finish`.

    Returns:
        The result, or `out`.

    Raises:
        ValueError: As for `matmul`.
        TypeError: As for `matmul`.
        UnknownName: No such distribution.
    """
    kept = _grouped.get(distribution)
    if kept is None:
        layouts = builtin_now().operation("grouped").layouts
        known = dict.fromkeys(layout.partition("-")[2] for layout in layouts)
        kept = _grouped.setdefault(misses.checked(distribution, "distribution", ("", *known)), {})
    arrays = {"a": as_array(a), "b": as_array(b), "offsets": as_array(offsets)}
    if dtype or not (scale_a is None and scale_b is None):
        scale_a, scale_b, scale = _scales(arrays["a"], arrays["b"], scale_a, scale_b)
        epilogue = Epilogue(scale=scale, result=_TO[misses.checked(dtype, "dtype of a product", _TO)])
        arrays |= {"scale_a": scale_a, "scale_b": scale_b} if scale else {}
        kept = _finished.setdefault((distribution, scale, dtype), {})
        return _first("grouped", arrays, out, kept, distribution=distribution, epilogue=epilogue)
    return _first("grouped", arrays, out, kept, distribution=distribution)


def clear_caches() -> None:
    """Forgets what was looked up and prepared, so that the next calls see new records."""
    with LOCK:
        prepared: list[dict[Any, Any]] = [*_matmul.values(), _gemv, _transpose, _finished, *_grouped.values()]
        for calls in prepared:
            calls.clear()
        decisions.forget()
        misses.expire()
        misses.PROCESS.forget()


decisions.REREADING.forget = clear_caches


def _first(
    function: str, arrays: Mapping[str, Any], out: Any, kept: dict[Hashable, Prepared], precision: str = "",
    **how: Any,
) -> Any:  # fmt: skip
    """A call with arrays of a kind that was not met before, or that is not remembered.

    Args:
        function: Its name.
        arrays: What it is called with.
        out: As the caller gave it.
        kept: Where its prepared calls are.
        precision: The precision that the call itself says; empty where it says none.
        how: ``epilogue``, ``factors``, ``bits`` and ``invariant``, or ``packed``, or ``distribution``, of
            `CallRequest`.
    """
    misses.chosen()  # or say that there is no such policy, before anything is prepared
    family = families.common_family(function, arrays, out)
    if family is None:
        views = {name: families.view(array) for name, array in arrays.items()}
        into = None if out is None else families.view(out)
        result = _first(function, views, into, kept, precision, **how)
        return families.given_back(result, arrays["a"]) if out is None else out
    given = dict(arrays) if out is None else {**arrays, "out": out}
    keys = key_of(given.values())
    key: Hashable = keys[0] if keys is not None and len(keys) == 1 else keys
    call = kept.get(key) if key is not None else None
    if call is None:
        operands = {name: family.operand(array) for name, array in given.items()}
        request = requests.request_for(function, operands, precision, family=family, **how)
        call = prepared_call(kept, key, request)
    return call(*arrays.values(), out)


def _product(
    a: Any, b: Any, out: Any, precision: str, held: tuple[str, str], *, bias: Any = None,
    activation: str = "", alpha: float = 1.0, beta: float | None = None, c: Any = None, residual: Any = None,
    scale_a: Any = None, scale_b: Any = None, dtype: str = "",
) -> Any:  # fmt: skip
    """A product with an epilogue, or whose bits are held.

    The call is that of a kernel that applies the epilogue before it stores, where one is known to be faster;
    else the library's product, and its element-wise functions behind it.
    """
    alpha, beta = float(alpha), None if beta is None else float(beta)
    c = None if beta == 0.0 else c
    # A vector is taken for columns; whether it has as many elements is asked at the first call.
    vector, kind = (bias, COLUMN) if bias is not None and len(bias.shape) == 1 else _bias(bias, a, b)
    scale_a, scale_b, scale = _scales(a, b, scale_a, scale_b)
    arrays = [array for array in (a, b, scale_a, scale_b, c, vector, residual) if array is not None]
    what = c is None, residual is None, scale, dtype
    marks = precision or PRECISION.get(), held, kind, activation, alpha, beta, what
    try:
        call = FOUND_OF[type(a)](_finished[marks], *arrays, out)
    except (KeyError, AttributeError, TypeError, RuntimeError):
        call = None
    if call is not None:
        return call(*arrays, out)
    bits, invariant = misses.checked(held[0], "class of bits", misses.BITS), held[1]
    if isinstance(b, Packed):
        raise InputError("matmul: an epilogue is for arrays, got a packed operand; leave one of them out")
    if activation:
        misses.checked(activation, "activation", ACTIVATIONS)
    if c is None and beta:
        raise ValueError(f"matmul: beta multiplies c, got beta={beta} without c; give c=, or leave beta out")
    a, b = as_array(a), as_array(b)
    factors = {"alpha": alpha, "beta": float((c is not None) if beta is None else beta)}
    vector, kind = _bias(bias, a, b)
    own = scale, _TO[misses.checked(dtype, "dtype of a product", _TO)]
    epilogue = Epilogue(
        alpha != 1.0, factors["beta"] != 0.0, kind, activation or "", residual is not None, *own
    )
    if invariant and (epilogue or bits):
        raise InputError("matmul: invariant is for plain products of arrays; leave epilogue and bits out")
    if not (epilogue or bits or invariant):
        return matmul(a, b, out, precision=precision)
    scales = {"scale_a": scale_a, "scale_b": scale_b}
    named = {"a": a, "b": b, **scales, "c": c, "bias": vector, "residual": residual}
    given = {name: array for name, array in named.items() if array is not None}
    values = {name: factors[name] for name in epilogue.factors}
    how = {"epilogue": epilogue, "factors": values, "bits": bits, "invariant": invariant}
    if marks not in _finished:
        decisions.keep(_finished, marks, {})
    return _first("matmul", given, out, _finished[marks], precision, **how)


def _scales(a: Any, b: Any, scale_a: Any, scale_b: Any) -> tuple[Any, Any, str]:
    """Scales as kernels take them, and what they are for."""
    if scale_a is None and scale_b is None:
        return None, None, ""
    (*rows, k), (*lead, _, n) = tuple(a.shape), tuple(b.shape)
    shapes = tuple(tuple(getattr(scale, "shape", ("none",))) for scale in (scale_a, scale_b))
    of_a, of_b = (0 if shape == ("none",) else math.prod(shape) for shape in shapes)
    one = (-1,) if lead else ()  # a stack of matrices B is one axis
    if of_a == 1 and of_b == math.prod(lead) and len(shapes[1]) <= max(2, len(lead)):
        return scale_a.reshape(1), scale_b.reshape(-1), BY_TENSOR
    if shapes[0] in ((*rows,), (*rows, 1)) and shapes[1] in ((*lead, n), (*lead, 1, n)):
        return scale_a.reshape(-1), scale_b.reshape((*one, n)), BY_LINE
    blocks, across = -(-k // SCALE_BLOCK), -(-n // SCALE_BLOCK)
    if shapes == ((*rows, blocks), (*lead, blocks, across)):
        of_b = scale_b if len(lead) < 2 else scale_b.reshape((*one, blocks, across))
        return scale_a if len(rows) == 1 else scale_a.reshape((-1, blocks)), of_b, BY_BLOCK
    raise ValueError(
        "scale_a and scale_b have shapes (1,) and (1,), (M,) and (N,), or (M, ceil(K / 128)) and "
        f"(ceil(K / 128), ceil(N / 128)), behind {tuple(rows[:-1])} and {tuple(lead)} for stacks, got "
        f"{shapes[0]} and {shapes[1]} for M={rows[-1]}, N={n}, K={k}"
    )


def _bias(bias: Any, a: Any, b: Any) -> tuple[Any, str]:
    """A bias as a vector, and whether it is for rows or columns."""
    if bias is None:
        return None, ""
    shape, (m, n) = tuple(bias.shape), (tuple(a.shape)[-2:-1], tuple(b.shape)[-1:])
    if shape in (n, (1, *n), (*m, 1)):
        vector = bias if shape == n else bias.reshape(-1)
        return vector, "bias-row" if shape == (*m, 1) and shape != (1, *n) else "bias-col"
    raise ValueError(
        "matmul: bias has an element for each column, shape (N,), or for each row, shape (M, 1); "
        f"got shape {shape} for a of shape {tuple(a.shape)} and b of shape {tuple(b.shape)}"
    )


class Packed:
    """A matrix as an emulated kernel takes it, for `tuner.matmul`; its memory goes with it.

    Attributes:
        shape: (K, N), as of the array that was packed.
        dtype: Name of the element type.
        device: ``cpu`` or ``cuda:0``.
        bytes: Memory that it holds: the packed form, and a copy of the matrix for products that the plain
            kernel has to compute.
    """

    def __init__(self, array: Any, family: Family, form: PackedForm | None) -> None:
        """Takes over an array that nobody else writes, and its packed form; None where there is none."""
        operand = family.operand(array)
        self.shape, self.dtype, self.device = operand.shape, operand.dtype, operand.device
        self.bytes = operand.bytes + (form.bytes if form else 0)
        self._array, self._form = array, form
        self._calls: dict[Hashable, Prepared] = {}

    def __repr__(self) -> str:
        return f"<packed {self.dtype} of shape {self.shape} on {self.device}, {self.bytes} bytes>"

    def product(self, a: Any, out: Any, precision: str) -> Any:
        """``a @ self``; see `tuner.matmul`."""
        if precision not in ("", EMULATED):
            raise InputError(
                f"matmul: a packed operand is for precision {EMULATED!r}, got {precision!r}; multiply by the "
                "array that it was packed from"
            )
        a = as_array(a)
        keys = key_of([a, self._array] if out is None else [a, self._array, out])
        call = self._calls.get(keys) if keys is not None else None
        if call is not None:
            return call(a, self._array, out)
        arrays = {"a": a, "b": self._array}
        return _first("matmul", arrays, out, self._calls, EMULATED, packed=self._form)


def pack(b: Any, *, rows: int = 0) -> Packed:
    """Packs the right operand of products once: weights, or the matrix of an iterative solver.

    What is packed stays as it was, whatever happens to the array.

    Args:
        b: Matrix of shape (K, N), float32, of NumPy, CuPy or PyTorch.
        rows: Rows of the left operands to come, for which the kernel is chosen; K unless given. Others work.

    Returns:
        An operand for ``tuner.matmul(a, packed)``, in the ``emulated`` precision. Where no kernel that packs
        was measured to be faster it holds a copy alone.

    Raises:
        TypeError: No array of these libraries.
        InputError: Not a matrix of float32.
    """
    family = family_of(b)
    if family is None:
        raise TypeError(f"pack: b is an array of NumPy, CuPy or PyTorch, got {type(b).__name__}")
    operand = family.operand(b)
    if operand.ndim != 2 or operand.dtype not in requests.EMULATED_DTYPES:
        raise InputError(
            f"pack: b is a matrix of float32, got {operand.dtype} of shape {operand.shape}; convert it"
        )
    turned = requests.placed("b", operand).turned
    copy = family.dense(b, turned)
    array = copy.T if turned else copy
    operand = family.operand(array)
    shape = rows or operand.shape[0], operand.shape[0]
    a = families.row_major(family.name, shape, operand.dtype, operand.itemsize, operand.device)
    request = requests.request_for("matmul", {"a": a, "b": operand}, EMULATED, family=family)
    form = None
    try:
        form = packed_form(array, request)
    except Exception as error:  # as for a call: a kernel that cannot be had is no reason to fail
        warn_once(f"an operand is not packed: {type(error).__name__}: {error}")
    return Packed(array, family, form)


def fallbacks() -> int:
    """How many emulated products of this process the plain kernels had to compute, on all GPUs.

    Waits for what is queued. Products of exported kernels are not counted.
    """
    launching = sys.modules.get("tuner.devices.cuda.launching")
    return launching.counted() if launching is not None else 0
