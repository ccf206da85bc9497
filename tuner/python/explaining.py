"""What a call would run, and why, without running it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy

from tuner.declare.epilogue import Epilogue
from tuner.devices.detect import is_on_host, is_spec
from tuner.errors import UnknownName
from tuner.lookup.answers import UNMEASURED
from tuner.python.arrays import Operand, common_family, dense_strides, view
from tuner.python.decisions import Decision, decide, problem_of
from tuner.python.operands import ARGUMENTS, REQUESTS, CallRequest, request_of
from tuner.python.policy import precision_of
from tuner.python.preparing import decision_for
from tuner.results.record import ProblemKey

#: Operation -> the function that computes it.
FUNCTIONS = {"gemm": "matmul", "gemv": "gemv", "transpose": "transpose"}


@dataclass(frozen=True)
class Explanation:
    """What a call would run, and why.

    Attributes:
        function: ``matmul``, ``gemv`` or ``transpose``.
        operands: The arrays in words.
        problem: The problem that a kernel would compute; empty where it is none.
        device: Name of the device.
        use: ``kernel``, or the library's name.
        why: The reason, for people.
        kernel: Kernel that the records name, run or not; empty where they name none.
        config: Its config.
        fallback: Kernel and config that compute inputs that the kernel does not take; empty if it takes all.
        match: What the answer rests on: ``exact``, ``predicted``, ``similar-device``, ``default``;
            empty without an answer.
        expected_loss: Fraction of speed that such an answer costs; 1 where that is not known.
        loss_said: What that figure rests on.
        speedup: Of the kernel over the library, by the record or the model; 0 where that is unknown.
        record: Problem and device of the record; empty without one.
        record_id: Its id.
        measured_at: When it was measured, ISO 8601 in UTC.
        stale: What has changed since it was measured; empty where nothing is known to have.
        memory: Tensor of the problem -> what is passed for it.
        copies: The arrays that are copied, and why; for the kernel only.
    """

    function: str
    operands: tuple[str, ...]
    problem: str
    device: str
    use: str
    why: str
    kernel: str
    config: dict[str, Any]
    fallback: str
    match: str
    expected_loss: float
    loss_said: str
    speedup: float
    record: str
    record_id: str
    measured_at: str
    stale: str
    memory: dict[str, str]
    copies: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return asdict(self)

    def __str__(self) -> str:
        config = " ".join(f"{name}={value}" for name, value in self.config.items())
        named = f"kernel {self.kernel}" + (f" with {config}" if config else "")
        lines = [("call", f"{self.function}: {'; '.join(self.operands)}")]
        lines += [("problem", self.problem)] if self.problem else []
        lines += [("device", self.device), ("runs", named if self.use == "kernel" else self.use)]
        lines += [("why", self.why)]
        lines += [("fallback", f"{self.fallback}, for inputs that it does not take")] if self.fallback else []
        if self.kernel and self.use != "kernel":
            lines += [("not", named + (f", {self.speedup:.3f} x {self.use}" if self.speedup else ""))]
        if self.match:
            known = self.expected_loss < UNMEASURED
            loss = f"{self.expected_loss:.1%} expected, {self.loss_said}" if known else self.loss_said
            lines += [("match", self.match), ("loss", loss)]
        if self.record:
            here = f"{self.problem} on {self.device}"
            lines += [("record", f"{self.record_id or 'published'}, {self.measured_at}")]
            lines += [("", f"of {self.record}")] if self.record != here else []
        if self.stale:
            lines += [("stale", self.stale)]
        if self.memory and self.use == "kernel":
            memory = (
                said if said.startswith(f"{name} ") else f"{name}: {said}" for name, said in self.memory.items()
            )
            lines += [("memory", ", ".join(memory))]
            lines += [("copies", "; ".join(self.copies) or "none")]
        return "\n".join(f"{name:9}{said}" for name, said in lines)


def explain(
    *call: Any,
    out: Any = None,
    shapes: Sequence[tuple[int, ...]] | None = None,
    dtype: str = "float32",
    layout: str = "",
    device: str = "",
    precision: str = "",
    epilogue: str = "",
    **dims: int,
) -> Explanation:
    """What `matmul`, `gemv` or `transpose` would run, and why. Nothing is computed or compiled.

    Args:
        call: The arrays of a call; before them, where they leave it open, the function or its name:
            ``explain(a, b)``, ``explain(tuner.gemv, a, x)``. Without arrays the function or the operation
            alone: ``explain("matmul", shapes=[(9, 5), (5, 7)])``, ``explain("gemm", m=9, n=7, k=5)``.
        out: As for the call.
        shapes: Shapes of the arrays, in place of arrays.
        dtype: Their element type.
        layout: With dims: how operands are stored, e.g. ``nt``.
        device: ``cpu``, ``cuda:0``, or the name of a device that need not be here; the GPU if there is one,
            else the CPU, unless given.
        precision: As for `matmul`.
        epilogue: Parts of an epilogue, such as ``bias-col+gelu``.
        dims: Dims of the operation, in place of arrays.

    Raises:
        ValueError: As for the call; or too few or too many arrays or dims.
        TypeError: As for the call.
        UnknownName: No such function, dtype, layout, precision or device.
        InputError: As for the call.
        NothingFound: Nothing is known of a device of that name.
    """
    function, arrays = _function_of(call, shapes, dims)
    if arrays:
        return _of_arrays(function, arrays, out, (precision, epilogue))
    where = device or _here()
    if dims:
        request = _of_dims(function, dims, dtype, layout, where)
    else:
        given = tuple(_row_major(tuple(shape), dtype, where) for shape in shapes or ())
        _check_count(function, given)
        request = REQUESTS[function](*given, None)
    request = _precise(request, precision, epilogue)
    return _explained(request, _decision(request, where))


def _precise(request: CallRequest, asked: str, epilogue: str) -> CallRequest:
    if request.function == "matmul":
        request = request.in_precision(precision_of(asked), asked)
    text = Epilogue.read(epilogue).text
    if text and request.problem is not None:
        problem = replace(request.problem, epilogue=text)
        problem_of(problem)  # or say that there is none
        return replace(request, problem=problem)
    return request


def _function_of(
    call: tuple[Any, ...], shapes: Sequence[Any] | None, dims: dict[str, int]
) -> tuple[str, tuple[Any, ...]]:
    """The function's name, and the arrays; arrays alone tell the function as well."""
    first = call[0] if call else None
    if isinstance(first, str) or (callable(first) and getattr(first, "__name__", "") in ARGUMENTS):
        name = first if isinstance(first, str) else first.__name__
        name = FUNCTIONS.get(name, name)
        if name not in ARGUMENTS:
            raise UnknownName("function", name, [*ARGUMENTS, *FUNCTIONS])
        return name, call[1:]
    if call:
        ndims = [numpy.ndim(each) if isinstance(each, (list, tuple)) else len(each.shape) for each in call]
    elif dims:
        raise ValueError("explain: dims are of an operation, got none; name it, e.g. explain('gemm', m=9, ...)")
    else:
        ndims = [len(shape) for shape in shapes or ()]
    if not ndims:
        raise ValueError("explain: give the arrays of a call, or shapes= or dims; got none of them")
    if len(ndims) == 1:
        return "transpose", call
    return "gemv" if ndims == [2, 1] else "matmul", call


def _of_arrays(function: str, arrays: tuple[Any, ...], out: Any, how: tuple[str, str]) -> Explanation:
    _check_count(function, arrays)
    arrays = tuple(numpy.asarray(each) if isinstance(each, (list, tuple)) else each for each in arrays)
    family = common_family(function, dict(zip(ARGUMENTS[function], arrays, strict=True)), out)
    if family is None:
        views = tuple(view(each) for each in arrays)
        return _of_arrays(function, views, None if out is None else view(out), how)
    request = _precise(request_of(function, family, arrays, out), *how)
    return _explained(request, decision_for(request))


def _check_count(function: str, given: tuple[Any, ...]) -> None:
    wanted = ARGUMENTS[function]
    if len(given) != len(wanted):
        raise ValueError(
            f"explain: {function} takes {len(wanted)} arrays ({', '.join(wanted)}), got {len(given)}; "
            "give out= by name"
        )


def _here() -> str:
    from tuner.devices.detect import find

    return find().spec


def _row_major(shape: tuple[int, ...], dtype: str, device: str) -> Operand:
    kind = numpy.dtype(dtype)
    library = "NumPy" if is_on_host(device) else "CuPy"
    return Operand(library, shape, dense_strides(shape, kind.itemsize), kind.name, kind.itemsize, device)


def _of_dims(function: str, dims: dict[str, int], dtype: str, layout: str, device: str) -> CallRequest:
    """The request of a call with arrays as an operation's layout says."""
    operation = next(name for name, each in FUNCTIONS.items() if each == function)
    problem = problem_of(ProblemKey(operation, tuple(dims.items()), dtype, layout))
    given = [_row_major(tensor.shape, tensor.dtype, device) for tensor in problem.inputs]
    for place, letter in enumerate(problem.layout):
        stored = given[place]
        if letter == "t":
            given[place] = Operand(
                stored.family, stored.shape[::-1], stored.strides[::-1], stored.dtype, stored.itemsize, device
            )
    return REQUESTS[function](*given, None)


def _decision(request: CallRequest, device: str) -> Decision | None:
    if is_spec(device):
        from tuner.devices.detect import find

        find(device)  # or say that there is none
        return decision_for(request)
    return decide(request.problem, device) if request.problem else None


def _explained(request: CallRequest, decision: Decision | None) -> Explanation:
    operands = tuple(f"{name} {operand.dtype} {operand.shape}" for name, operand in request.operands.items())
    found = decision.answer if decision else None
    record = found.record if found else None
    names = _names(decision, len(request.tensors)) if decision else []
    return Explanation(
        function=request.function,
        operands=operands,
        problem=str(request.problem or ""),
        device=decision.device.name if decision else request.device,
        use="kernel" if decision and decision.kernel else _library(request, decision),
        why=decision.why if decision else request.why,
        kernel=found.kernel if found else "",
        config=dict(found.config) if found else {},
        fallback=decision.kernel.falls_back_to(found.config) if decision and decision.kernel and found else "",
        match=found.match if found else "",
        expected_loss=found.expected_loss if found else 0.0,
        loss_said=found.loss.said if found else "",
        speedup=found.speedup if found else 0.0,
        record=f"{record.problem} on {record.device.name}" if record else "",
        record_id=record.id if record else "",
        measured_at=record.measured_at if record else "",
        stale=found.stale_reason if found and found.stale else "",
        memory={name: str(of) for name, of in zip(names, request.tensors, strict=False)},
        copies=tuple(str(of) for of in request.copied),
    )


def _names(decision: Decision, count: int) -> list[str]:
    """Names of the tensors that a request places: of an epilogue's inputs it may know none."""
    inputs = [tensor.name for tensor in decision.problem.inputs]
    return [*inputs[: count - 1], *(tensor.name for tensor in decision.problem.outputs)]


def _library(request: CallRequest, decision: Decision | None) -> str:
    """The library that would run: the arrays' own, or the one below it that was measured."""
    return decision.library if decision else next(iter(request.operands.values())).family
