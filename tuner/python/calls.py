"""From a request to the call of what runs: a kernel's, the library's, or one that may change.

For one way in which arrays lie, all that can be settled beforehand is settled once. What is left to a prepared
call is to allocate the result, to see whether a given one overlaps an input, and to run the kernel.

Calls of a problem that nobody tuned are counted, measured where the policy says so, and decided anew where the
policy or the records change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable
from concurrent.futures import wait
from dataclasses import replace
from functools import partial
from typing import Any

from tuner.declare.epilogue import BY_BLOCK, BY_LINE, FLOAT8_DTYPES, SCALE_BLOCK
from tuner.declare.kernel import render
from tuner.declare.launch import Packing
from tuner.lookup.demand import DEMAND
from tuner.lookup.stale import builtin_now
from tuner.python import decisions, misses
from tuner.python.arrays import NUMPY, Family, row_major
from tuner.python.decisions import LOCK, Decision
from tuner.python.misses import CHOSEN, EPOCH, MEASURE, CallPolicy, chosen, expire
from tuner.python.requests import CallRequest, PackedForm, Placed, request_for
from tuner.python.running import ReadyKernel, Runs
from tuner.results.record import ProblemKey

#: Takes the caller's arrays, those that are read and then ``out``, and returns the result.
Prepared = Callable[..., Any]
#: Calls of a kernel at the most for stacks that repeat each other's matrices; the library copies what repeats.
IN_TURN = 16
#: Kernels of 8-bit numbers where nothing is known: the library's; wgmma where that has none.
EIGHTS = {"gemm": ("cublaslt_fp8", "wgmma_fp8")}
#: Ends of a measurement that the user is told of.
TOLD = ("busy", "failed")


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
    decision = decisions.decision_for(request)
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
    packed = request.packed
    if packed is not None and packing is not None and packed.kernel == name and not request.copied:
        ready.loaded.use_packed(packing, packed.memory)
    writable = all(operand.writable for operand in request.operands.values())
    return _bound(request, ready.runs(request.family, writable=writable), ready.launches(request.family))


def library_call(request: CallRequest, decision: Decision | None) -> Prepared:
    """A call of the library; of what is as good where the device would wait for PyTorch's calls.

    Args:
        request: What is asked for.
        decision: What the records say, where it is a problem.
    """
    cheapest = decisions.cheapest_call(request, decision) if decision is not None else None
    if cheapest is not None:
        with contextlib.suppress(Exception):  # what is only as good is not missed
            return _in_graphs(request, _call_of_family(request, decision), kernel_call(request, cheapest))
    return _call_of_family(request, decision)


def _call_of_family(request: CallRequest, decision: Decision | None) -> Prepared:
    """A call of the product of the arrays' own library."""
    family = request.family
    if request.operands_dtype in FLOAT8_DTYPES:
        return _of_eights(request, decision)
    if request.epilogue:
        return _finished(request)
    if decision is not None and family.name == "CuPy" and not request.copied:
        baseline = decision.problem.operation.baselines.get(decision.device.kind)
        run = baseline.bind(decision.problem) if baseline is not None else None
        if run is not None:
            return _bound(request, run)
    if request.function in ("transpose", "grouped"):
        return getattr(family, request.function)  # type: ignore[no-any-return]
    operands = request.operands.values()
    guarded = family is not NUMPY and request.out is not None and all(operand.plain for operand in operands)
    return _apart(request, family.matmul) if guarded else family.matmul


def _apart(request: CallRequest, call: Prepared) -> Prepared:
    """The library's product, copied where `out` overlaps an input: a GPU writes it while they are read."""
    address = request.family.address
    (a_first, a_end), (b_first, b_end), (first, end) = (operand.span for operand in request.operands.values())

    def called(a: Any, b: Any, out: Any) -> Any:
        at_a, at_b, to = address(a), address(b), address(out)
        beside_a = to + end <= at_a + a_first or at_a + a_end <= to + first
        if beside_a and (to + end <= at_b + b_first or at_b + b_end <= to + first):
            return call(a, b, out)
        return _into(request.family, out, call(a, b, None))

    return called


def _into(family: Family, out: Any, result: Any) -> Any:
    """A result, copied into `out` unless that is None or the result."""
    if out is None or out is result:
        return result
    family.assign(out, result)
    return out


def _finished(request: CallRequest) -> Prepared:
    """The library's product, then its element-wise functions."""
    family, epilogue, factors = request.family, request.epilogue, request.factors
    names = epilogue.operands

    def called(a: Any, b: Any, *more: Any) -> Any:
        *arrays, out = more
        given = {**dict(zip(names, arrays, strict=True)), **factors}
        return _into(family, out, family.finished(a, b, epilogue, given, out))

    return called


def _of_eights(request: CallRequest, decision: Decision | None) -> Prepared:
    """A product of 8-bit numbers by cuBLASLt, of groups by a kernel, on their device; elsewhere in float32."""
    groups = request.function == "grouped"
    if decision is not None and decision.device.kind == "cuda":
        known, of = (decision.problem, decision.device), decision.problem.operation.name
        for kernel in builtin_now().of(of, "cuda", EIGHTS.get(of, ("wgmma",))):
            config = next((one for one in kernel.first_configs() if kernel.legal(*known, one)), None)
            if config is not None:
                return kernel_call(request, replace(decision, kernel=kernel, config=config))
    family, epilogue, factors, names = request.family, request.epilogue, request.factors, request.inputs[2:]

    def called(a: Any, b: Any, *more: Any) -> Any:
        *arrays, out = more
        given = {**dict(zip(names, arrays, strict=True)), **factors}
        wide = [family.converted(operand, "float32") for operand in (a, b)]
        if epilogue.scale:
            of_a, of_b, rows, lead = given["scale_a"], given["scale_b"], a.shape[:-1], b.shape[:-2]
            if epilogue.scale == BY_BLOCK:
                terms, columns = ([at // SCALE_BLOCK for at in range(size)] for size in b.shape[-2:])
                of_a = of_a.reshape((*rows, -1))[..., terms]
                of_b = of_b.reshape((*lead, *of_b.shape[-2:]))[..., terms, :][..., columns]
            else:
                is_line = epilogue.scale == BY_LINE
                of_a = of_a.reshape((*rows, 1)) if is_line else of_a
                of_b = of_b.reshape((*lead, 1, -1 if is_line else 1))
            wide = [wide[0] * of_a, wide[1] * of_b]
        sums = (
            family.grouped(wide[0], wide[1], given["offsets"], None) if groups else family.matmul(*wide, None)
        )
        product = family.finish(sums, epilogue.unscaled, given)
        return _into(family, out, family.converted(product, request.dtype))

    return called


def _bound(request: CallRequest, run: Runs, launch: Runs | None = None) -> Prepared:
    """A kernel's run, between taking a caller's arrays apart and putting the result together.

    Args:
        request: Where the problem's tensors come from.
        run: Runs the kernel on arrays.
        launch: Runs it at addresses of arrays on a GPU.
    """
    family, target, inputs = request.family, request.tensors[-1], request.inputs
    places = [inputs.index(tensor.argument) for tensor in request.tensors[:-1]]
    takes = [_taking(tensor, family) for tensor in request.tensors[:-1]]
    empty, overlap, shape = _result_of(request), family.overlap, request.shape
    rows = target.shape if family is NUMPY else None

    def by_parts(*given: Any) -> Any:
        *arrays, out = given
        tensors = [take(arrays[at]) if take else arrays[at] for at, take in zip(places, takes, strict=True)]
        fits = out is not None and not (target.copied or any(overlap(out, array) for array in arrays))
        result = out if fits else empty(shape, arrays[0])
        run(*tensors, result if rows is None else result.reshape(rows))
        return result if fits else _into(family, out, result)  # inputs that it overlaps were still to be read

    # Most calls take the shortest way: their tensors are the arrays as they come.
    direct = places == list(range(len(inputs))) and not any(takes) and not target.copied
    if direct and launch is not None:
        return family.at_home(_at_addresses(request, launch, by_parts), request.device)

    def two(a: Any, b: Any, out: Any) -> Any:
        if out is None:
            out = empty(shape, a)
        elif overlap(out, a) or overlap(out, b):
            return by_parts(a, b, out)
        run(a, b, out)
        return out

    return family.at_home(two if direct and len(inputs) == 2 else by_parts, request.device)


def _at_addresses(request: CallRequest, launch: Runs, by_parts: Prepared) -> Prepared:
    """The shortest way on a GPU: each array's address is read once, and tells whether `out` overlaps an input.

    Args:
        request: Its tensors are the arrays as they come, all dense.
        launch: Runs the kernel at addresses.
        by_parts: What is called where `out` overlaps an input.
    """
    shape, empty, address = request.shape, _result_of(request), request.family.address
    out_bytes = request.out.bytes if request.out is not None else 0
    sizes = [request.operands[name].bytes for name in request.inputs]
    a_bytes, b_bytes = sizes[0], sizes[-1]

    def any_number(*given: Any) -> Any:
        *arrays, out = given
        starts = list(map(address, arrays))
        if out is None:
            out = empty(shape, arrays[0])
            to = address(out)
        else:
            to = address(out)
            for start, size in zip(starts, sizes, strict=True):
                if to < start + size and start < to + out_bytes:
                    return by_parts(*given)
        launch(arrays[0], *starts, to)
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
                return by_parts(a, b, out)
        launch(a, at_a, at_b, to)
        return out

    return two if len(sizes) == 2 else any_number


def _result_of(request: CallRequest) -> Callable[..., Any]:
    """What makes a new array for the result, of a shape and like the first input but for the dtype."""
    empty, dtype = request.family.empty, request.dtype
    return empty if dtype == next(iter(request.operands.values())).dtype else partial(empty, dtype=dtype)


def _taking(tensor: Placed, family: Family) -> Callable[[Any], Any] | None:
    """What makes a problem's input of an argument; None where the argument is it: on a GPU its address is."""
    turned, dense, shape = tensor.turned, family.dense, tensor.shape

    def whole(array: Any) -> Any:
        array = array[tensor.part] if tensor.part else array
        return array.reshape(shape) if shape else array

    if tensor.copied:
        return lambda array: dense(whole(array), turned)
    if family is not NUMPY or not (turned or shape):
        return None
    axes = (-2, -1) if turned else (-1, -1)
    return lambda array: whole(array).swapaxes(*axes)


def prepared_call(kept: dict[Any, Prepared], key: Hashable | None, request: CallRequest) -> Prepared:
    """The call of what is decided; where that may change, one that asks what is decided now.

    Args:
        kept: Where it is kept for the next.
        key: By which; None for a call that is not to be remembered.
        request: What is asked for.
    """
    decision = decisions.decision_for(request)
    with LOCK:
        missed = decision is not None and decision.is_miss and not request.invariant
        settle = partial(kept.__setitem__, key) if key is not None else None
        call = missed_call(request, settle) if missed else prepared_by(request, decision)
        if key is not None:
            decisions.keep(kept, key, call)
    return call


def prepared_by(request: CallRequest, decision: Decision | None) -> Prepared:
    """The call of a decision's kernel; the library's where that cannot be had, which is no reason to fail.

    Args:
        request: What is asked for.
        decision: What runs; None for the library of the arrays.
    """
    if request.invariant and decision is not None:
        return kernel_call(request, decision)
    try:
        if decision is None or decision.kernel is None:
            stacks = _stacks_in_turn(request) if decision is None and request.function == "matmul" else None
            return stacks or library_call(request, decision)
        kernel = kernel_call(request, decision)
        if decision.in_graphs is None:
            return kernel
        library = library_call(request, decision)
        return _in_graphs(request, *((kernel, library) if decision.in_graphs else (library, kernel)))
    except Exception as error:
        decisions.warn_once(
            f"{request.function} of {request.problem} is left to the library, since the kernel cannot be had: "
            f"{type(error).__name__}: {error}"
        )
        return library_call(request, None)


def _stacks_in_turn(request: CallRequest) -> Prepared | None:
    """Products of stacks that repeat each other's matrices, a stack after the other; None without a kernel."""
    family, shape, (a, b, *out) = request.family, request.shape, request.operands.values()
    if min(a.ndim, b.ndim) < 2 or len(shape) < 4 or shape[0] > IN_TURN or request.epilogue:
        return None
    result = out[0] if out else row_major(family.name, shape, a.dtype, a.itemsize, a.device)
    named = zip(("a", "b", "out"), (a, b, result), strict=True)
    parts = {name: one.inner if one.ndim == len(shape) else one for name, one in named}
    one = request_for("matmul", parts, request.precision, family=family)
    decision = decisions.decision_for(one)
    if decision is None or decision.kernel is None:
        return None
    call, empty = kernel_call(one, decision), _result_of(request)

    def called(*given: Any) -> Any:
        *arrays, out = given
        apart = out is None or any(family.overlap(out, array) for array in arrays)
        to = empty(shape, arrays[0]) if apart else out
        for at in range(shape[0]):
            call(*(of[at % len(of)] if of.ndim == len(shape) else of for of in arrays), to[at])
        return _into(family, out, to) if apart else out

    return called


def _in_graphs(request: CallRequest, captured: Prepared, called: Prepared) -> Prepared:
    """One call where a graph is captured, whose launches no host waits for; elsewhere another."""
    capturing = request.family.capturing
    request.family.begin_library(request.device)
    return lambda *given: (captured if capturing(given[0]) else called)(*given)


def missed_call(request: CallRequest, settle: Callable[[Prepared], None] | None = None) -> Prepared:
    """The calls at a problem that nobody tuned: each is counted, and runs what the policy around it says.

    Args:
        request: What is asked for.
        settle: Takes what is to be called instead, once the problem is tuned.
    """
    #: What runs, by the policy of the surrounding block, as long as the epoch is the same; what ran last.
    runs: dict[CallPolicy | None, Prepared] = {}
    epoch, last, surrounding = [EPOCH[0]], list[Prepared](), CHOSEN.get
    decision = decisions.decision_for(request)
    assert decision is not None, "a miss is of a problem"
    tally = DEMAND.count(decision.problem, decision.device, decision.answer)
    hits = tally.hits

    def decided(array: Any) -> Prepared:
        """What runs now; during the capture of a graph, when nothing may be loaded, what ran before."""
        if last and request.family.capturing(array):
            return last[0]
        consult(request, array)
        if epoch[0] != EPOCH[0]:
            epoch[0] = EPOCH[0]
            runs.clear()
        with LOCK:
            decision = decisions.decision_for(request)
            last[:] = [prepared_by(request, decision)]
        runs[surrounding()] = last[0]
        tally.closed = decision is None or not decision.is_miss
        if tally.closed and settle is not None:
            settle(last[0])
        return last[0]

    def called(*arrays: Any) -> Any:
        hits[0] += 1
        run = runs.get(surrounding()) if epoch[0] == EPOCH[0] else None
        return (run if run is not None else decided(arrays[0]))(*arrays)

    called.__dict__["pending"] = settle is not None
    return called


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
    changed, bits = partial(decide_anew, problem, device), request.bits or policy.bits
    pending = misses.PROCESS.ask(problem, device, policy.seconds, changed, bits)
    if policy.wait:
        wait([pending], misses.WAIT_S + 2 * policy.seconds)
    outcome, why = pending.result() if pending.done() else ("", "")
    if outcome in TOLD:
        decisions.warn_once(f"{problem} could not be measured at its first use, and is answered without: {why}")


def decide_anew(problem: ProblemKey, device: str) -> None:
    """Has the next calls of a problem decided anew: it was measured."""
    decisions.forget_one(problem, device)
    expire()
