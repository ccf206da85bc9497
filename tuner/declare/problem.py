"""Operations, and problems: an operation with shape, dtype and layout fixed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from tuner.declare.epilogue import FLOAT8_DTYPES, ROUNDINGS, Epilogue
from tuner.errors import DeclarationError, InputError, UnknownName

T = TypeVar("T")

#: Dtypes that a tensor or a scalar may have, with the bytes of an element.
DTYPE_BYTES: Mapping[str, int] = {
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8, "uint8": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
#: Bits of the significand of floating-point dtypes, the hidden one included.
SIGNIFICANDS: Mapping[str, int] = {
    "float8_e5m2": 3, "float8_e4m3fn": 4, "float16": 11, "bfloat16": 8, "float32": 24, "float64": 53,
}  # fmt: skip
#: What tensor cores of Hopper keep of a product beside a larger one, in bits, and the terms that are added up
#: before float32 sums take them over. DeepSeek-V3's report (2024, 3.3.2) has both: 14 bits, every 128 terms.
KEPT_BITS, PROMOTED = 14, 128
#: How exactly a problem is computed; the first is the default. ``ieee``: products and sums in the dtype itself.
#: ``emulated``: any arithmetic that is as exact as the library's for the inputs at hand.
PRECISIONS = ("ieee", "emulated")
IEEE, EMULATED = PRECISIONS
#: Largest value of a scalar argument that a kernel receives as ``int``.
INT32_MAX = 2**31 - 1
#: Rounding errors of a sum of n terms grow like sqrt(n) for data of random sign (Higham and Mary 2019,
#: "A new approach to probabilistic rounding error analysis"). Measured with float32 sums of normal
#: inputs: rms 0.28 * u * sqrt(n) of the result's rms, the largest of 1e7 elements about 1.7; 8 leaves
#: a factor of more than four, and still rejects TF32 and half-precision products.
TOLERANCE_FACTOR = 8.0


@dataclass(frozen=True)
class Tensor:
    """One array argument of a kernel, as it is stored.

    Attributes:
        name: Name in reference, baseline and export.
        shape: Stored shape, row-major; a transposed operand has its stored shape here.
        dtype: Element type.
        output: True if the kernel writes it, and never reads it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    output: bool = False

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Scalar:
    """One scalar argument of a kernel.

    Attributes:
        name: Its name.
        dtype: Its dtype.
        value: Its value; where a caller gives it, the one that kernels are verified and timed with.
        given: True if callers give it: a factor, say. Exported functions then take it, too.
    """

    name: str
    dtype: str
    value: float
    given: bool = False


@dataclass(frozen=True)
class Work:
    """The least work that a problem requires.

    Attributes:
        flops: Floating-point operations (2*M*N*K for a gemm).
        bytes: Bytes that must move: every input read once, every output written once.
    """

    flops: float
    bytes: float


@dataclass(frozen=True)
class Baseline:
    """The library measured beside a kernel.

    Attributes:
        name: ``cuBLAS``, ``NumPy``...
        call: ``call(xp, problem, arrays)`` writes the output arrays; ``xp`` is numpy or cupy and
            ``arrays`` maps tensor names to arrays.
        names: Dtype -> name, for dtypes for which the call uses another library.
        finishing: Problem with an epilogue -> name; what the call then uses beside or instead of the library.
        blas: False if the call uses no BLAS on a CPU; it then runs on one thread.
        bind: Problem -> the library's own function for it. The function takes arrays in the order of the
            problem's tensors and queues a run on the current stream. Callables need it if the array library's
            own product or copy does not use that function; it returns None if it does.
        allowance: Problem -> so many times the usual tolerance is allowed to the call, because it rounds more
            often than a kernel does.
    """

    name: str
    call: Callable[[Any, Problem, Mapping[str, Any]], None]
    names: Mapping[str, str] = field(default_factory=dict)
    finishing: Callable[[Problem], str] | None = None
    blas: bool = True
    bind: Callable[[Problem], Callable[..., None] | None] = lambda problem: None
    allowance: Callable[[Problem], float] = lambda problem: 1.0

    def named(self, problem: Problem) -> str:
        """The library's name for a problem."""
        if problem.epilogue and self.finishing is not None:
            return self.finishing(problem)
        return self.names.get(problem.dtype, self.name)


def dims_as_scalars(problem: Problem) -> tuple[Scalar, ...]:
    """The dims as int32, in their order.

    Raises:
        InputError: A dim is too large for it.
    """
    for name, value in problem.shape:
        if value > INT32_MAX:
            raise InputError(
                f"{name} <= {INT32_MAX} must hold (kernels of {problem.operation.name!r} take it as a "
                f"32-bit int), got {name}={value}; choose a smaller one, or declare scalars= with int64"
            )
    return tuple(Scalar(name, "int32", value) for name, value in problem.shape)


@dataclass(frozen=True)
class Operation:
    """A computation, for every shape, dtype and layout for which it is declared.

    A kernel receives the tensors in the order of `tensors`, then the scalars in the order of `scalars`.

    Attributes:
        name: e.g. ``gemm``.
        dims: Names of the sizes that fix a shape, in the order in which users give them.
        tensors: Problem -> the tensors, as stored.
        work: Problem -> `Work`.
        reference: ``(xp, problem, arrays)`` -> the output in float64; a mapping by name if there are several
            outputs. ``xp`` is numpy or cupy; arrays keep their stored shapes and dtypes.
        dtypes: Allowed dtypes; the first is the default.
        layouts: Allowed layouts; the first is the default. ``("",)`` if there is only one.
        emulated: Dtypes that the ``emulated`` precision may be chosen for.
        epilogues: Dtypes in which a result may have an epilogue (`tuner.declare.epilogue`): `tensors`,
            `scalars`, `work` and `reference` then heed `Problem.epilogue`.
        scaled: Dtypes of 8 bits whose problems have no other parts of an epilogue than scales and the result's
            dtype.
        sums: Dtype -> wider dtype in which its products are summed; the result is rounded once. Only kernels
            whose `Scope.dtypes` name such a dtype compute in it.
        layouts_of: Dtype -> the layouts that it alone has.
        parts: Dim -> the dim that counts its parts: rows -> groups. Kernels' `tiles` are then of a part.
        scalars: Problem -> scalar arguments; by default the dims as int32.
        constants: ``(problem, target)`` -> further names, beside the parameters, that a source may use at
            compile time. For ``cuda`` a string is a token (``{"SCALAR": "float"}``).
        terms: Problem -> number of products summed into one output element; it scales the tolerance.
        baselines: Target (``cuda``, ``cpu``) -> the library to compare with.
        verb: Name of the function in an exported module.
        c_reference: Output's name -> body of a C++ function that returns one element of it as ``double``,
            for the self-check of an exported CUDA source. It sees the inputs as host arrays by name, the
            dims as ``long long``, the element's flat ``index``, and `constants` as macros. Outputs without one
            are not checked.
        draws: ``(problem, tensor, generator, count)`` -> `count` numbers that an input is cut from, by a
            generator of NumPy: say indices that stay in range; or several rows, each of which is a whole draw
            of the input. None, or a rule that returns None, for normal
            numbers, and whole numbers below 1000.
        fixed: True if the reference holds for the first numbers that `draws` gives and for no others. Every
            run is then checked on the same inputs, which says less than fresh ones.
        origin: File that declares it; set by the catalogue.
    """

    name: str
    dims: tuple[str, ...]
    tensors: Callable[[Problem], tuple[Tensor, ...]]
    work: Callable[[Problem], Work]
    reference: Callable[[Any, Problem, Mapping[str, Any]], Any]
    dtypes: tuple[str, ...] = ("float32",)
    layouts: tuple[str, ...] = ("",)
    emulated: tuple[str, ...] = ()
    epilogues: tuple[str, ...] = ()
    scaled: tuple[str, ...] = ()
    sums: Mapping[str, str] = field(default_factory=dict)
    scalars: Callable[[Problem], tuple[Scalar, ...]] = dims_as_scalars
    constants: Callable[[Problem, str], Mapping[str, Any]] = lambda problem, target: {}
    layouts_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    terms: Callable[[Problem], int] = lambda problem: 1
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    verb: str = ""
    c_reference: Mapping[str, str] = field(default_factory=dict)
    draws: Callable[[Problem, Tensor, Any, int], Any] | None = None
    fixed: bool = False
    origin: Path | None = None

    def __post_init__(self) -> None:
        for text, what in ((self.name, "name"), (self.verb or self.name, "verb")):
            if not text.isidentifier():
                raise DeclarationError(f"an operation's {what} is an identifier, got {text!r}; rename it")
        if not self.dims or len(set(self.dims)) != len(self.dims):
            raise DeclarationError(f"operation {self.name!r} needs distinct dims, got {self.dims!r}")
        if not self.verb:
            object.__setattr__(self, "verb", self.name)

    def problem(
        self, shape: Mapping[str, int], dtype: str = "", layout: str = "", precision: str = "",
        epilogue: str = "",
    ) -> Problem:  # fmt: skip
        """Fixes shape, dtype, layout, precision and epilogue.

        Args:
            shape: Sizes of 1 or more, one for each of `dims`.
            dtype: One of `dtypes`; the first if empty.
            layout: One of `layouts`; the first if empty.
            precision: One of `PRECISIONS`; the first if empty.
            epilogue: Words as `tuner.declare.epilogue.Epilogue.read` takes them; none if empty.

        Raises:
            UnknownName: The operation has no such dim, dtype or layout; there is no such precision, or no such
                part of an epilogue.
            InputError: A dim is missing, is not a whole number, or is below 1; the precision or the epilogue is
                not for it.
        """
        for name in shape:
            if name not in self.dims:
                raise UnknownName(f"dim of {self.name}", name, self.dims)
        missing = [name for name in self.dims if name not in shape]
        if missing:
            wanted = " ".join(name.upper() for name in self.dims)
            raise InputError(f"{self.name} takes {wanted}; {', '.join(missing)} missing; give every one")
        for name, value in shape.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"a dim is a whole number of 1 or more, got {name}={value!r}; choose another")
        dtype = dtype or self.dtypes[0]
        if dtype not in self.dtypes:
            raise UnknownName(f"dtype of {self.name}", dtype, self.dtypes)
        layouts = self.layouts_of.get(dtype, self.layouts)
        layout = layout or layouts[0]
        if layout not in layouts:
            own = f" in {dtype}" if dtype in self.layouts_of else ""
            raise UnknownName(f"layout of {self.name}{own}", layout, layouts)
        precision = self.check_precision(precision or IEEE, dtype)
        sizes = tuple((name, shape[name]) for name in self.dims)
        text = self.check_epilogue(epilogue, dtype) if epilogue else ""
        return Problem(self, sizes, dtype, layout, precision, text)

    def named(self, sizes: Sequence[T]) -> dict[str, T]:
        """Sizes in the order of the dims, by their names.

        Raises:
            InputError: There are more or fewer than dims.
        """
        if len(sizes) != len(self.dims):
            count = f"{' '.join(self.dims).upper()}: {len(self.dims)} dims"
            raise InputError(f"{self.name} takes {count}, got {len(sizes)}; give a size for each")
        return dict(zip(self.dims, sizes, strict=True))

    def check_precision(self, precision: str, dtype: str) -> str:
        """The precision, if the operation may be computed so.

        Raises:
            UnknownName: No such precision.
            InputError: It is not for the dtype, or not for the operation.
        """
        if precision not in PRECISIONS:
            raise UnknownName("precision", precision, PRECISIONS)
        if precision != IEEE and dtype not in self.emulated:
            known = f"{self.name} in {' or '.join(self.emulated)}" if self.emulated else "gemm in float32"
            raise InputError(
                f"precision {precision!r} is for {known}, got {self.name} in {dtype}; choose that, or "
                f"precision {IEEE!r}"
            )
        return precision

    def check_epilogue(self, epilogue: str, dtype: str) -> str:
        """The canonical text of an epilogue, if the operation may have it.

        Raises:
            UnknownName: No such part.
            InputError: The words contradict each other; the operation has none in that dtype.
        """
        words, text = Epilogue.read(epilogue), Epilogue.read(epilogue).text
        if text and dtype not in (
            self.epilogues if words.unscaled or words.mixed else (*self.epilogues, *self.scaled)
        ):
            known = f"{self.name} in {', '.join(self.epilogues)}" if self.epilogues else "gemm"
            raise InputError(
                f"epilogue {text!r} is for {known}, got {self.name} in {dtype}; leave it out, or choose that"
            )
        if dtype not in FLOAT8_DTYPES and text != Epilogue.read(text).unscaled.text:
            raise InputError(
                f"scales and dtypes of results are for {', '.join(FLOAT8_DTYPES)}, got {text!r} in {dtype}; "
                "leave them out"
            )
        return text


@dataclass(frozen=True)
class Problem:
    """An operation with shape, dtype, layout, precision and epilogue fixed. Dims are attributes: ``problem.m``.

    Attributes:
        operation: The operation.
        shape: (dim, value) pairs in the operation's order.
        dtype: Element type.
        layout: e.g. ``nn``; empty where the operation has none.
        precision: One of `PRECISIONS`.
        epilogue: What is done to the result before it is stored: `Epilogue.text`.
        values: Values of scalars that a caller gives, by name; no part of what the problem is.
    """

    operation: Operation = field(compare=False, repr=False)
    shape: tuple[tuple[str, int], ...]
    dtype: str
    layout: str
    precision: str = IEEE
    epilogue: str = ""
    values: tuple[tuple[str, float], ...] = field(default=(), compare=False, repr=False)

    def with_values(self, values: Mapping[str, float]) -> Problem:
        """The same problem with other values of scalars that callers give."""
        return replace(self, values=tuple(values.items()))

    def at(self, shape: Mapping[str, int]) -> Problem:
        """The same problem at another shape.

        Raises:
            InputError: As `Operation.problem`.
        """
        return self.operation.problem(shape, self.dtype, self.layout, self.precision, self.epilogue)

    def __getattr__(self, name: str) -> int:
        for dim, value in self.__dict__.get("shape", ()):
            if dim == name:
                return value  # type: ignore[no-any-return]
        raise AttributeError(name)

    @property
    def dims(self) -> dict[str, int]:
        """Shape as a mapping from dim to value."""
        return dict(self.shape)

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors as stored, in argument order."""
        return self.operation.tensors(self)

    @cached_property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that are read."""
        return tuple(tensor for tensor in self.tensors if not tensor.output)

    @cached_property
    def outputs(self) -> tuple[Tensor, ...]:
        """The tensors that are written."""
        return tuple(tensor for tensor in self.tensors if tensor.output)

    def axes(self, dim: str) -> dict[str, int]:
        """Name of each tensor that grows with a dim -> its axis that does."""
        longer = self.at({**self.dims, dim: self.dims[dim] + 1}).tensors
        return {
            own.name: [one != other for one, other in zip(own.shape, more.shape, strict=True)].index(True)
            for own, more in zip(self.tensors, longer, strict=True)
            if own != more
        }

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        """The scalar arguments, after the tensors in argument order."""
        declared = self.operation.scalars(self)
        if not self.values:
            return declared
        values = dict(self.values)
        return tuple(replace(number, value=values.get(number.name, number.value)) for number in declared)

    @cached_property
    def work(self) -> Work:
        """Flops and bytes of one run."""
        return self.operation.work(self)

    @property
    def memory_bytes(self) -> int:
        """Bytes of device memory that tuning needs.

        It holds the tensors, the data from which inputs are drawn anew, two float64 references, and the float64
        operands of one.
        """
        doubled = sum(math.prod(tensor.shape) * 8 for tensor in (*self.tensors, *self.outputs))
        return sum(tensor.bytes for tensor in (*self.tensors, *self.inputs)) + doubled

    @property
    def tolerance(self) -> float:
        """Largest acceptable error of an element, relative to the reference's rms plus the element.

        ``TOLERANCE_FACTOR * u * sqrt(terms)`` where u is the unit roundoff of the dtype of the sums. Where that
        is not the output's (`Operation.sums`), the rounding of the result to the output's dtype comes on top.
        An epilogue adds its own roundings, and its activation may let those of the sums grow. Those of 8 bits
        are added up in `KEPT_BITS` over `PROMOTED` terms; errors of such parts are independent of each other.
        """
        rounding, sums = roundings(self.operation, self.outputs[0].dtype)
        of_sums = TOLERANCE_FACTOR * sums * math.sqrt(self.operation.terms(self))
        if self.dtype in FLOAT8_DTYPES:
            of_sums += TOLERANCE_FACTOR * 2.0**-KEPT_BITS * math.sqrt(min(self.operation.terms(self), PROMOTED))
        if self.epilogue:
            of_sums = Epilogue.read(self.epilogue).growth * of_sums + ROUNDINGS * sums
        return float(rounding + of_sums)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields that name the problem; no epilogue where it has none."""
        named = {
            "operation": self.operation.name, "shape": self.dims, "dtype": self.dtype, "layout": self.layout,
            "precision": self.precision,
        }  # fmt: skip
        return named | self.told_epilogue

    @property
    def told_epilogue(self) -> dict[str, str]:
        """The epilogue as a field of JSON; no field where there is none, as before there were any."""
        return {"epilogue": self.epilogue} if self.epilogue else {}

    def __str__(self) -> str:
        sizes = " x ".join(str(value) for _, value in self.shape)
        return worded(self.operation.name, sizes, self.dtype, self.layout, self.precision, self.epilogue)


def roundings(operation: Operation, dtype: str) -> tuple[float, float]:
    """Unit roundoffs of a result of that dtype: of the result itself, where its sums are wider; of its sums.

    Both are 0 for whole numbers, which are exact.
    """
    if dtype not in SIGNIFICANDS:
        return 0.0, 0.0
    wider = operation.sums.get(dtype, dtype)
    return (0.0 if wider == dtype else 2.0 ** -SIGNIFICANDS[dtype]), 2.0 ** -SIGNIFICANDS[wider]


def worded(operation: str, sizes: str, dtype: str, layout: str, precision: str, epilogue: str = "") -> str:
    """A problem in words; the usual precision goes without saying."""
    parts = (operation, sizes, dtype, layout, "" if precision == IEEE else precision, epilogue)
    return " ".join(part for part in parts if part)
