"""What a call would run, and why, without running it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy

from tuner.declare.epilogue import Epilogue
from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import Problem
from tuner.devices.detect import find, is_on_host, is_spec
from tuner.errors import InputError
from tuner.lookup import Answer
from tuner.lookup.answers import UNMEASURED
from tuner.lookup.stale import builtin_now
from tuner.python.arrays import Operand, as_array, common_family, operand_of, row_major
from tuner.python.decisions import Decision, decide, decision_for
from tuner.python.misses import checked
from tuner.python.requests import ARGUMENTS, CallRequest, problem_of, request_for
from tuner.results.record import ProblemKey
from tuner.results.units import config_text

#: Operation -> the function that computes it.
FUNCTIONS = {"gemm": "matmul", "bmm": "matmul"} | {name: name for name in ("gemv", "transpose", "grouped")}


@dataclass(frozen=True)
class Explanation:
    """What a call would run, and why.

    Attributes:
        function: ``matmul``, ``gemv``, ``transpose``, or a tuned kernel of one's own.
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
    kernel: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    fallback: str = ""
    match: str = ""
    expected_loss: float = 0.0
    loss_said: str = ""
    speedup: float = 0.0
    record: str = ""
    record_id: str = ""
    measured_at: str = ""
    stale: str = ""
    memory: dict[str, str] = field(default_factory=dict)
    copies: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return asdict(self)

    def __str__(self) -> str:
        """A line for each thing that is known, under its name."""
        values: dict[str, object] = {
            **self.to_json(), "operands": "; ".join(self.operands), "config": config_text(self.config),
            "speedup": self.speedup and f"{self.speedup:.3f} x", "copies": "; ".join(self.copies),
            "expected_loss": "" if self.expected_loss == UNMEASURED else f"{self.expected_loss:.1%}",
            "memory": ", ".join(f"{name}: {text}" for name, text in self.memory.items()),
        }  # fmt: skip
        return "\n".join(f"{name.replace('_', ' '):14}{value}" for name, value in values.items() if value)

    __repr__ = __str__  # what a prompt shows


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
    """What `matmul`, `gemv`, `transpose` or `grouped` would run, and why. Nothing is computed or compiled.

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
    named = bool(call) and (isinstance(call[0], str) or getattr(call[0], "__name__", "") in ARGUMENTS)
    function, arrays = _function(call[0]) if named else "", list(map(as_array, call[named:]))
    here, at = bool(arrays) or is_spec(device), device or find().spec
    if arrays:
        common_family("explain", dict(zip("abc", arrays, strict=False)), out)
        operands = [operand_of(array) for array in arrays]
    else:
        shaped = [_row_major(tuple(shape), dtype, at) for shape in shapes or ()]
        operands = _of_dims(function, dims, dtype, layout, at) if dims else shaped
    if not function:
        several = "gemv" if [operand.ndim for operand in operands] == [2, 1] else "matmul"
        function = "transpose" if len(operands) == 1 else several
    names, read = ARGUMENTS[function], Epilogue.read(epilogue)
    if len(operands) != len(names):
        raise ValueError(
            f"explain: {function} takes {len(names)} arrays ({', '.join(names)}), got {len(operands)}; give "
            "the arrays, or shapes= or dims, and out= by name"
        )
    if read and function != "matmul":
        raise InputError(f"explain: an epilogue is of products of matrices, got {function}; leave it out")
    given = dict(zip(names, operands, strict=True)) | ({} if out is None else {"out": operand_of(out)})
    spread = layout.partition("-")[2] if function == "grouped" else ""
    request = request_for(function, given, precision, epilogue=read, distribution=spread)
    if here:
        find(device)  # or say that there is none
        return _explained(request, decision_for(request))
    decision = decide(request.problem, device) if request.problem else None
    no_faster = decision is not None and decision.in_graphs is False
    return _explained(request, decision.by_library(decision.why) if decision and no_faster else decision)


def _function(named: Any) -> str:
    """The function that is called so, or that computes the operation of that name."""
    name: str = named if isinstance(named, str) else named.__name__
    return checked(FUNCTIONS.get(name, name), "function", ARGUMENTS)


def _row_major(shape: tuple[int, ...], dtype: str, device: str) -> Operand:
    kind = numpy.dtype(dtype)
    return row_major("NumPy" if is_on_host(device) else "CuPy", shape, kind.name, kind.itemsize, device)


def _of_dims(function: str, dims: Mapping[str, int], dtype: str, layout: str, device: str) -> list[Operand]:
    """Arrays as an operation's layout says."""
    known = [builtin_now().operation(name) for name, computes in FUNCTIONS.items() if computes == function]
    if not known:
        raise ValueError("explain: dims are of an operation, got none; name it, e.g. explain('gemm', m=9, ...)")
    operation = max(known, key=lambda own: len(dims.keys() & set(own.dims))).name
    problem = problem_of(ProblemKey(operation, tuple(dims.items()), dtype, layout))
    stored = [_row_major(tensor.shape, tensor.dtype, device) for tensor in problem.inputs]
    letters = problem.layout.partition("-")[0].ljust(len(stored), "n")
    return [array.turned if letter == "t" else array for array, letter in zip(stored, letters, strict=True)]


def _explained(request: CallRequest, decision: Decision | None) -> Explanation:
    answer, kernel = (decision.answer, decision.kernel) if decision else (None, None)
    tensors: list[str] = []
    if decision is not None:  # of an epilogue's inputs a request may place none
        inputs = [tensor.name for tensor in decision.problem.inputs]
        tensors = [*inputs[: len(request.tensors) - 1], *(tensor.name for tensor in decision.problem.outputs)]
    # The arrays' own library, or the one below it that was measured.
    library = decision.library if decision else next(iter(request.operands.values())).family
    return Explanation(
        function=request.function,
        operands=tuple(f"{name} {operand.dtype} {operand.shape}" for name, operand in request.operands.items()),
        problem=str(request.problem or ""),
        device=decision.device.name if decision else request.device,
        use="kernel" if decision and kernel and not decision.in_graphs else library,
        why=decision.why if decision else request.why,
        fallback=kernel.falls_back_to(answer.config) if kernel and answer else "",
        memory={name: str(tensor) for name, tensor in zip(tensors, request.tensors, strict=False)},
        copies=tuple(map(str, request.copied)),
        **_of_answer(answer),
    )


def explain_kernel(name: str, problem: Problem, device: DeviceInfo, answer: Answer) -> Explanation:
    """What a kernel of one's own runs, and why.

    Args:
        name: Its name.
        problem: What it computes.
        device: Where.
        answer: What a lookup knows of it.
    """
    return Explanation(
        function=name,
        operands=tuple(f"{tensor.name} {tensor.dtype} {tensor.shape}" for tensor in problem.tensors),
        problem=str(problem),
        device=device.name,
        use="kernel",
        why="; ".join(answer.reasons) or answer.loss.said,
        **_of_answer(answer),
    )


def _of_answer(answer: Answer | None) -> dict[str, Any]:
    """What a lookup has to say of the kernel that it names."""
    if answer is None:
        return {}
    record = answer.record
    of_record = {
        "record": f"{record.problem} on {record.device.name}", "record_id": record.id,
        "measured_at": record.measured_at,
    } if record else {}  # fmt: skip
    return {
        "kernel": answer.kernel, "config": dict(answer.config), "match": answer.match,
        "expected_loss": answer.expected_loss, "loss_said": answer.loss.said, "speedup": answer.speedup,
        "stale": answer.stale_reason if answer.stale else "", **of_record,
    }  # fmt: skip
