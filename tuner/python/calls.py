"""From a request to the call of what runs: a kernel's, the library's, or one that may change.

For one way in which arrays lie, all that can be settled beforehand is settled once. What is left to a prepared
call is to allocate the result, to see whether a given one overlaps an input, and to run the kernel.

Calls of a problem that nobody tuned are counted, measured where the policy says so, and decided anew where the
policy or the records change.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping
from functools import cache, partial
from typing import Any

import numpy

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Rendered, render
from tuner.declare.launch import Packing
from tuner.declare.problem import Problem
from tuner.devices.detect import kind_of
from tuner.lookup.answers import EXACT
from tuner.lookup.demand import DEMAND
from tuner.python import measuring
from tuner.python.arrays import NUMPY, Family, index_of
from tuner.python.decisions import Decision, decide, forget, problem_of, warn_once
from tuner.python.policy import CHANGED, CHOSEN, LIBRARY, MEASURE, VARIABLE, CallPolicy, chosen
from tuner.python.requests import CallRequest, PackedForm, Placed
from tuner.results.record import ProblemKey

#: Takes the caller's arrays, those that are read and then ``out``, and returns the result.
Prepared = Callable[..., Any]
#: Runs a kernel on stored arrays, in the order of the problem's tensors.
Runs = Callable[..., None]
#: Hash of a rendered CPU kernel -> its entry function, ready to run: shapes share what is compiled.
_ENTRIES: dict[str, Callable[..., Any]] = {}


class ReadyKernel:
    """A rendered kernel, compiled (or taken from the cache) and loaded for one device.

    Attributes:
        problem: What it computes.
        loaded: What launches it on a GPU; None on the host.
    """

    def __init__(self, rendered: Rendered, problem: Problem, device: DeviceInfo, spec: str) -> None:
        """Compiles and loads it.

        Args:
            rendered: The kernel.
            problem: What it computes.
            device: What it is compiled for.
            spec: ``cpu`` or ``cuda:0``: where it runs.

        Raises:
            CompileFailed: The kernel does not compile.
        """
        self.loaded: Any = None
        self.problem = problem
        if kind_of(spec).is_host:
            from tuner.devices.cpu.numba import ready

            known = _ENTRIES.get(rendered.hash)
            self._entry = known or _ENTRIES.setdefault(rendered.hash, ready(rendered, problem))
        else:
            from tuner.devices.cuda.calling import Loaded

            self.loaded = Loaded(rendered, problem, device, index_of(spec))

    def runs(self, family: Family, numbers: Mapping[str, Any] | None = None, writable: bool = True) -> Runs:
        """What runs it on arrays of a library.

        Args:
            family: The library.
            numbers: Values for some of the problem's scalars, by name.
            writable: False if some arrays may only be read.
        """
        scalars = self._scalars(numbers or {})
        if self.loaded is not None:
            return family.runs(self.loaded.with_scalars(scalars))
        entry, values = self._entry, tuple(scalar.item() for scalar in scalars)
        if writable:
            return lambda *arrays: entry(*arrays, *values)
        # Numba would compile anew for arrays that cannot be written.
        return lambda *arrays: entry(*map(_as_writable, arrays), *values)

    def launches(self, family: Family) -> Runs | None:
        """What launches it at addresses of a library's arrays; None for arrays of the host."""
        return None if self.loaded is None else family.launches(self.loaded.with_scalars(self._scalars({})))

    def _scalars(self, given: Mapping[str, Any]) -> list[Any]:
        """NumPy's numbers for the problem's scalars."""
        return [
            numpy.dtype(scalar.dtype).type(given.get(scalar.name, scalar.value))
            for scalar in self.problem.scalars
        ]


class _WritableMemory:
    """Read-only memory, described as if it may be written; kernels only read their inputs."""

    def __init__(self, array: Any) -> None:
        interface = dict(array.__array_interface__)
        self.__array_interface__ = interface | {"data": (interface["data"][0], False)}
        self._array = array  # keeps the memory


def _as_writable(array: Any) -> Any:
    return array if array.flags.writeable else numpy.asarray(_WritableMemory(array))


def _ready(
    request: CallRequest, decision: Decision
) -> tuple[ReadyKernel, Packing | None, tuple[str, str, str]]:
    """A decision's kernel, how it packs the last input, and what names the packed form."""
    kernel, config = decision.kernel, decision.config
    assert kernel is not None
    assert config is not None
    problem = decision.problem.with_values(request.factors)
    rendered, name = render(kernel, problem, config), problem.inputs[-1].name
    packings = rendered.launch.packings if rendered.launch else ()
    packing = next((packing for packing in packings if packing.tensor == name), None)
    ready = ReadyKernel(rendered, problem, decision.device, request.device)
    return ready, packing, (kernel.name, kernel.source_hash, packing.form if packing else "")


def packed_form(array: Any, request: CallRequest) -> PackedForm | None:
    """A matrix in the form that the kernel for a product packs its right operand in; None where it packs none.

    Args:
        array: Dense, as the problem's layout says.
        request: The product with it.
    """
    decision = decision_for(request)
    if decision is None or decision.kernel is None:
        return None
    ready, packing, name = _ready(request, decision)
    if packing is None:
        return None
    memory = ready.loaded.pack(packing, request.family.address(array), request.family.stream(array))
    return PackedForm(memory, packing.bytes, name)


def kernel_call(request: CallRequest, decision: Decision) -> Prepared:
    """A call of a decision's kernel.

    Raises:
        CompileFailed: The kernel does not compile.
        Exception: Whatever a compiler, a driver or a cache folder is unhappy with.
    """
    ready, packing, name = _ready(request, decision)
    packed, as_it_lies = request.packed, not request.copied and not request.tensors[-1].turned
    if packed is not None and packing is not None and packed.kernel == name and as_it_lies:
        ready.loaded.use_packed(packing, packed.memory)
    writable = all(operand.writable for operand in request.operands.values())
    return _bound(request, ready.runs(request.family, writable=writable), ready.launches(request.family))


def library_call(request: CallRequest, decision: Decision | None) -> Prepared:
    """A call of the library.

    Args:
        request: What is asked for.
        decision: What the records say, where it is a problem.
    """
    family = request.family
    if request.epilogue:
        return partial(_finished, request)
    if decision is not None and family.name == "CuPy" and not request.copied:
        baseline = decision.problem.operation.baselines.get(decision.device.kind)
        run = baseline.bind(decision.problem) if baseline is not None else None
        if run is not None:
            return _bound(request, run)
    return family.transpose if request.function == "transpose" else family.matmul


def _finished(request: CallRequest, a: Any, b: Any, *more: Any) -> Any:
    """The library's product, then its element-wise functions."""
    *arrays, out = more
    given = dict(zip(request.epilogue.operands, arrays, strict=True)) | dict(request.factors)
    result = request.family.finish(request.family.matmul(a, b, None), request.epilogue, given)
    if out is None:
        return result
    request.family.assign(out, result)
    return out


def _bound(request: CallRequest, run: Runs, launch: Runs | None = None) -> Prepared:
    """A kernel's run, between taking a caller's arrays apart and putting the result together.

    Args:
        request: Where the problem's tensors come from.
        run: Runs the kernel on arrays.
        launch: Runs it at addresses of arrays on a GPU.
    """
    family, target, overlaps = request.family, request.tensors[-1], _overlaps(request)
    places = [request.inputs.index(tensor.argument) for tensor in request.tensors[:-1]]
    takes = [(at, _taking(tensor, family)) for at, tensor in zip(places, request.tensors, strict=False)]
    shape, empty, assign = request.shape, family.empty, family.assign
    stored, turn = shape[::-1] if target.turned else shape, target.turned and family is NUMPY

    def call(*given: Any) -> Any:
        *arrays, out = given
        tensors = [take(arrays[at]) if take else arrays[at] for at, take in takes]
        if (
            out is None
            or target.copied
            or any(over(out, each) for over, each in zip(overlaps, arrays, strict=True))
        ):
            result = empty(stored, arrays[0])
            run(*tensors, result)
            if out is None:
                return result
            # Inputs that would be overwritten were still to be read: as in NumPy, the result is copied there.
            assign(out, result.T if target.turned else result)
        else:
            run(*tensors, out.T if turn else out)
        return out

    def one(a: Any, out: Any) -> Any:
        if out is None:
            out = empty(shape, a)
        elif long_way or over_a(out, a):
            return call(a, out)
        run(a, out)
        return out

    def two(a: Any, b: Any, out: Any) -> Any:
        if out is None:
            out = empty(shape, a)
        elif long_way or over_a(out, a) or over_b(out, b):
            return call(a, b, out)
        run(a, b, out)
        return out

    # Most calls take the shortest way: their tensors are the arrays as they come.
    long_way, over_a, over_b = bool(target.copied) or turn, overlaps[0], overlaps[-1]
    direct = len(places) <= 2 and places == sorted(places) and not any(take for _, take in takes)
    shortest: Prepared = (one if len(places) == 1 else two) if direct else call
    if direct and launch is not None and not long_way:
        shortest = _at_addresses(request, launch, call)
    return family.at_home(shortest, request.device)


def _at_addresses(request: CallRequest, launch: Runs, by_copy: Prepared) -> Prepared:
    """The shortest way on a GPU: each array's address is read once, and tells whether `out` overlaps an input.

    Args:
        request: Its tensors are the one or two arrays as they come, all dense.
        launch: Runs the kernel at addresses.
        by_copy: What is called where `out` overlaps an input.
    """
    shape, empty, address = request.shape, request.family.empty, request.family.address
    out_bytes = request.out.bytes if request.out is not None else 0
    a_bytes, b_bytes = (request.operands[name].bytes for name in (request.inputs[0], request.inputs[-1]))

    def one(a: Any, out: Any) -> Any:
        at_a = address(a)
        if out is None:
            out = empty(shape, a)
            to = address(out)
        else:
            to = address(out)
            if to < at_a + a_bytes and at_a < to + out_bytes:
                return by_copy(a, out)
        launch(a, at_a, to)
        return out

    def two(a: Any, b: Any, out: Any) -> Any:
        at_a, at_b = address(a), address(b)
        if out is None:
            out = empty(shape, a)
            to = address(out)
        else:
            to = address(out)
            end = to + out_bytes
            if (to < at_a + a_bytes and at_a < end) or (to < at_b + b_bytes and at_b < end):
                return by_copy(a, b, out)
        launch(a, at_a, at_b, to)
        return out

    return one if len(request.inputs) == 1 else two


def _overlaps(request: CallRequest) -> list[Callable[[Any, Any], bool]]:
    """Per input: whether `out` may share memory with it; of dense arrays on a GPU addresses tell."""
    out, family, address = request.out, request.family, request.family.address

    def of_dense(out_bytes: int, bytes_: int, to: Any, array: Any) -> bool:
        one, other = address(to), address(array)
        return one < other + bytes_ and other < one + out_bytes

    return [
        partial(of_dense, out.bytes, operand.bytes)
        if out is not None and family is not NUMPY and out.is_dense and operand.is_dense
        else family.overlap
        for operand in (request.operands[name] for name in request.inputs)
    ]


def _taking(tensor: Placed, family: Family) -> Callable[[Any], Any] | None:
    """What makes a tensor of an argument; None where the argument is it: of a GPU's the address is enough."""
    turned, dense = tensor.turned, family.dense
    if tensor.copied:
        return lambda array: dense(array, turned)
    return (lambda array: array.T) if turned and family is NUMPY else None


#: Prepared calls that a function keeps, and decisions that are kept; the oldest go first.
KEPT = 4096
#: Ends of a measurement that the user is told of.
TOLD = ("busy", "failed")


class Preparing:
    """One call is decided and prepared at a time, so that nothing is looked up or compiled twice.

    Attributes:
        lock: Reentrant; free in a forked process, where no thread is left to give it back.
    """

    lock = threading.RLock()

    @classmethod
    def renew(cls) -> None:
        """In a forked process."""
        cls.lock = threading.RLock()


os.register_at_fork(after_in_child=Preparing.renew)
_decided: dict[tuple[ProblemKey, str], Decision] = {}
#: What is prepared for problems that nobody tuned. Changed under the lock, and read without it, since a
#: measurement ends in another thread while a call may be prepared.
_misses: list[weakref.ref[Miss]] = []


def _keep(kept: dict[Any, Any], key: Hashable, value: Any) -> None:
    """Puts a value into a dict that holds `KEPT` at the most."""
    while len(kept) >= KEPT:
        del kept[next(iter(kept))]
    kept[key] = value


@cache
def device_info(device: str) -> DeviceInfo:
    """Identity and limits of ``cpu`` or ``cuda:N``."""
    return kind_of(device).describe(index_of(device))


def decision_for(request: CallRequest) -> Decision | None:
    """What runs, by records and by what has to be copied; None where it is no problem for a kernel."""
    if request.problem is None:
        return None
    key = request.problem, request.device
    with Preparing.lock:
        decision = _decided.get(key)
        if decision is None:
            decision = decide(request.problem, device_info(request.device))
            _keep(_decided, key, decision)
    copies = request.copied
    if decision.kernel is None:
        return decision
    if is_miss(request, decision) and chosen().how == LIBRARY:
        why = (
            f"it is not tuned, and the policy is {LIBRARY!r} ({VARIABLE}, tuner.on_miss); else: {decision.why}"
        )
        return decision.by_library(why)
    if not copies or decision.worth_copying(request.copied_bytes, len(copies)):
        return decision
    names = ", ".join(placement.argument for placement in copies)
    why = f"a copy of {names} ({copies[0].copied}) is taken to cost more than the kernel saves"
    return decision.by_library(why)


def _decision_or_none(request: CallRequest) -> Decision | None:
    """What is decided; None where there is no problem for a kernel, or where the lookup failed."""
    try:
        return decision_for(request)
    except Exception as error:
        _warn_left(request, error)
        return None


def is_miss(request: CallRequest, decision: Decision | None) -> bool:
    """Whether a problem for a kernel has no answer of its own."""
    if request.problem is None or decision is None:
        return False
    answer = decision.answer
    own = decision.problem.precision == request.problem.precision
    return answer is None or answer.match != EXACT or not own


def consult(request: CallRequest, array: Any) -> None:
    """Has a miss measured where the policy says so, and waits if that says so; not while a graph is captured.

    Args:
        request: What is asked for.
        array: One of the call's.
    """
    policy = chosen()
    if policy.how != MEASURE or request.problem is None or request.family.capturing(array):
        return
    problem, device = request.problem, request.device
    pending = measuring.PROCESS.ask(problem, device, policy.seconds, partial(decide_anew, problem, device))
    if policy.wait:
        pending.wait()
    outcome, why = pending.result() if pending.done() else ("", "")
    if outcome in TOLD:
        warn_once(f"{problem} could not be measured at its first use, and is answered without: {why}")


def _every_miss() -> list[Miss]:
    return [miss for reference in list(_misses) if (miss := reference()) is not None]


def decide_anew(problem: ProblemKey, device: str) -> None:
    """Has the next calls of a problem decided anew: it was measured."""
    _decided.pop((problem, device), None)
    for miss in _every_miss():
        if (miss.request.problem, miss.request.device) == (problem, device):
            miss.runs.clear()


def _policy_changed() -> None:
    for miss in _every_miss():
        miss.runs.pop(None, None)


CHANGED.append(_policy_changed)


def forget_all() -> None:
    """Forgets what was decided, so that new records count, and lets what was measured be asked for again."""
    with Preparing.lock:
        _decided.clear()
        _misses.clear()
    forget()
    measuring.PROCESS.forget()


class Miss:
    """The calls with arrays of one kind whose problem nobody tuned.

    Attributes:
        request: What is asked for.
        tally: Counts the calls.
        runs: What runs, by the policy of the surrounding block; without it what is not decided yet, or not any
            more.
    """

    def __init__(self, request: CallRequest, decision: Decision) -> None:
        """Begins to count the calls."""
        self.request = request
        self.runs: dict[CallPolicy | None, Prepared] = {}
        self._last: Prepared | None = None
        assert request.problem is not None, "a miss is of a problem"
        self.tally = DEMAND.count(problem_of(request.problem), decision.device, decision.answer)

    def decided(self, array: Any) -> Prepared:
        """What runs now; during the capture of a graph, when nothing may be loaded, what ran before.

        Args:
            array: One of the call's.
        """
        if self._last is not None and self.request.family.capturing(array):
            return self._last
        consult(self.request, array)
        surrounding = CHOSEN.get()
        with Preparing.lock:
            decision = _decision_or_none(self.request)
            self._last = prepared_by(self.request, decision)
        if not is_miss(self.request, decision):
            self.tally.closed = True
        self.runs[surrounding] = self._last
        return self._last

    def call(self) -> Prepared:
        """The call as it is kept: it counts, and runs what the policy that surrounds it says."""
        hits, runs, surrounding, decided = self.tally.hits, self.runs, CHOSEN.get, self.decided

        def called(*arrays: Any) -> Any:
            hits[0] += 1
            run = runs.get(surrounding())
            return (run if run is not None else decided(arrays[0]))(*arrays)

        return called


def prepared_call(
    kept: dict[Any, Prepared], key: Hashable | None, request: CallRequest, array: Any
) -> Prepared:
    """The call of what is decided; where that may change, one that asks what is decided now.

    Args:
        kept: Where it is kept for the next.
        key: By which; None for a call that is not to be remembered.
        request: What is asked for.
        array: One of the call's.
    """
    if is_miss(request, _decision_or_none(request)):
        consult(request, array)  # which may wait, and so is not done under the lock
    with Preparing.lock:
        decision = _decision_or_none(request)
        if decision is not None and is_miss(request, decision):
            miss = Miss(request, decision)
            _misses[:] = [*(known for known in _misses if known() is not None), weakref.ref(miss)]
            miss.decided(array)
            call = miss.call()
        else:
            call = prepared_by(request, decision)
        if key is not None:
            _keep(kept, key, call)
    return call


def prepared_by(request: CallRequest, decision: Decision | None) -> Prepared:
    """The call of a decision's kernel; the library's where that cannot be had, which is no reason to fail.

    Args:
        request: What is asked for.
        decision: What runs; None for the library of the arrays.
    """
    try:
        if decision is not None and decision.kernel is not None:
            return kernel_call(request, decision)
        return library_call(request, decision)
    except Exception as error:
        _warn_left(request, error)
        return library_call(request, None)


def _warn_left(request: CallRequest, error: Exception) -> None:
    warn_once(
        f"{request.function} of {request.problem} is left to the library, since the kernel cannot be had: "
        f"{type(error).__name__}: {error}"
    )
