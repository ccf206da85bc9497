"""Prepared calls: for one way in which arrays lie, all that can be settled beforehand is settled.

What is left to a prepared call is to allocate the result, to see whether a given one overlaps an input, and to
run the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy

from tuner.declare.kernel import Rendered, render
from tuner.declare.launch import Packing
from tuner.python.arrays import NUMPY, Family, TorchFamily, index_of
from tuner.python.decisions import Decision
from tuner.python.operands import CallRequest, Placed, is_dense

#: Takes the caller's arrays, ``(a, b, out)`` or ``(a, out)``, and returns the result.
Prepared = Callable[..., Any]
#: Runs a kernel on stored arrays, in the order of the problem's tensors.
Runs = Callable[..., None]
#: Hash of a rendered CPU kernel -> its entry function, ready to run.
_ENTRIES: dict[str, Callable[..., Any]] = {}


def library_call(request: CallRequest, decision: Decision | None, family: Family) -> Prepared:
    """A call of the library.

    Args:
        request: What is asked for.
        decision: What the records say, where it is a problem.
        family: Library that the arrays belong to.
    """
    if decision is not None and family.name == "CuPy" and not request.copied:
        baseline = decision.problem.operation.baselines.get(decision.device.kind)
        run = baseline.bind(decision.problem) if baseline is not None else None
        if run is not None:
            return family.at_home(_kernel_call(request, family, run, turn=False), request.device)
    if request.function == "transpose":
        return family.transpose
    return family.matmul


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


def _packing(rendered: Rendered, decision: Decision) -> tuple[Packing | None, tuple[str, str, str]]:
    """How the last input is packed, and what names the packed form."""
    assert decision.kernel is not None
    name = decision.problem.inputs[-1].name
    packings = rendered.launch.packings if rendered.launch else ()
    packing = next((each for each in packings if each.tensor == name), None)
    return packing, (decision.kernel.name, decision.kernel.source_hash, packing.form if packing else "")


def packed_form(array: Any, request: CallRequest, decision: Decision, family: Family) -> PackedForm | None:
    """A matrix in the form that a decision's kernel packs its right operand in; None where it packs none.

    Args:
        array: Dense, as the problem's layout says.
        request: A product with it.
        decision: What runs for it.
        family: Library of the array.
    """
    assert decision.kernel is not None
    assert decision.config is not None
    rendered = render(decision.kernel, decision.problem, decision.config)
    packing, named = _packing(rendered, decision)
    if packing is None:
        return None
    from tuner.devices.cuda.calling import Loaded

    loaded = Loaded(rendered, decision.problem, decision.device, index_of(request.device))
    stream = family.stream(array) if isinstance(family, TorchFamily) else None
    return PackedForm(loaded.pack(packing, family.address(array), stream), packing.bytes, named)


def kernel_call(
    request: CallRequest, decision: Decision, family: Family, packed: PackedForm | None = None
) -> Prepared:
    """A call of a decision's kernel: compiled or taken from the cache, and loaded.

    Args:
        request: What is asked for.
        decision: What runs.
        family: Library of the arrays.
        packed: The right operand as it was packed before; not used where the kernel packs otherwise.

    Raises:
        CompileFailed: The kernel does not compile.
        Exception: Whatever a compiler, a driver or a cache folder is unhappy with.
    """
    assert decision.kernel is not None
    assert decision.config is not None
    rendered = render(decision.kernel, decision.problem, decision.config)
    if family is NUMPY:
        return _kernel_call(request, family, _on_host(rendered, request, decision), turn=True)
    from tuner.devices.cuda.calling import Loaded

    loaded = Loaded(rendered, decision.problem, decision.device, index_of(request.device))
    packing, named = _packing(rendered, decision)
    if packed is not None and packing is not None and packed.kernel == named and not request.tensors[-1].turned:
        loaded.use_packed(packing, packed.memory)
    if isinstance(family, TorchFamily):
        stream, run_at = family.stream, loaded.run_at

        def at_addresses(*tensors: Any) -> None:
            run_at(stream(tensors[0]), *(tensor.data_ptr() for tensor in tensors))

        return _kernel_call(request, family, at_addresses, turn=False)
    return family.at_home(_kernel_call(request, family, loaded.shortest_run, turn=False), request.device)


def _on_host(rendered: Rendered, request: CallRequest, decision: Decision) -> Runs:
    from tuner.devices.cpu.numba import ready

    # Shapes share what is compiled: a rendered kernel holds for all of them.
    entry = _ENTRIES.get(rendered.hash) or _ENTRIES.setdefault(rendered.hash, ready(rendered, decision.problem))
    scalars = tuple(numpy.dtype(each.dtype).type(each.value).item() for each in decision.problem.scalars)
    if all(operand.writable for operand in request.operands.values()):
        if len(request.tensors) == 2:
            return lambda a, out: entry(a, out, *scalars)
        if len(request.tensors) == 3:
            return lambda a, b, out: entry(a, b, out, *scalars)
        return lambda *arrays: entry(*arrays, *scalars)
    # Numba would compile anew for arrays that cannot be written.
    return lambda *arrays: entry(
        *(each if each.flags.writeable else _posing(each) for each in arrays), *scalars
    )


class _Memory:
    """Read-only memory, described as if it may be written; kernels only read their inputs."""

    def __init__(self, array: Any) -> None:
        interface = dict(array.__array_interface__)
        self.__array_interface__ = interface | {"data": (interface["data"][0], False)}
        self._array = array  # keeps the memory


def _posing(array: Any) -> Any:
    return numpy.asarray(_Memory(array))


def _kernel_call(request: CallRequest, family: Family, run: Runs, turn: bool) -> Prepared:
    """What takes a caller's arrays apart and puts the result together.

    Args:
        request: Where the problem's tensors come from.
        family: Library of the arrays.
        run: Runs the kernel.
        turn: False where a run needs no more of an array than its address.
    """
    order = [argument for argument in request.operands if argument != "out"]
    places = [order.index(each.argument) for each in request.tensors[:-1]]
    takes = [_taking(each, family, turn) for each in request.tensors[:-1]]
    if not any(takes) and places == sorted(places) and len(order) <= 2:
        return _direct(request, family, run, turn)
    write = _writing(request, family, run, turn)
    if len(order) == 1:
        (take,) = takes
        assert take is not None
        return lambda a, out: write((take(a),), (a,), out)
    pairs = list(zip(places, takes, strict=True))
    if len(order) > 2:

        def several(*given: Any) -> Any:
            *arrays, out = given
            return write([take(arrays[at]) if take else arrays[at] for at, take in pairs], arrays, out)

        return several

    def call(a: Any, b: Any, out: Any) -> Any:
        given = (a, b)
        return write([take(given[at]) if take else given[at] for at, take in pairs], given, out)

    return call


def _direct(request: CallRequest, family: Family, run: Runs, turn: bool) -> Prepared:
    """Where the tensors are the arrays as they come: the shortest way, which most calls take."""
    shape, empty, target = request.shape, family.empty, request.tensors[-1]
    write, overlaps = _writing(request, family, run, turn), _overlaps(request, family)
    long_way = bool(target.copied) or (target.turned and turn)
    over_a, over_b = overlaps[0], overlaps[-1]

    def one(a: Any, out: Any) -> Any:
        if out is None:
            out = empty(shape, a)
        elif long_way or over_a(out, a):
            return write((a,), (a,), out)
        run(a, out)
        return out

    def two(a: Any, b: Any, out: Any) -> Any:
        if out is None:
            out = empty(shape, a)
        elif long_way or over_a(out, a) or over_b(out, b):
            return write((a, b), (a, b), out)
        run(a, b, out)
        return out

    return one if len(overlaps) == 1 else two


def _overlaps(request: CallRequest, family: Family) -> list[Callable[[Any, Any], bool]]:
    """Per input: whether `out` may share memory with it."""
    names = [name for name in request.operands if name != "out"]
    out, address = request.operands.get("out"), family.address
    if out is None or family is NUMPY:
        return [family.overlap for _ in names]

    def of_dense(out_bytes: int, bytes_: int) -> Callable[[Any, Any], bool]:
        def check(to: Any, array: Any) -> bool:
            one, other = address(to), address(array)
            return one < other + bytes_ and other < one + out_bytes

        return check

    operands = [request.operands[name] for name in names]
    return [
        of_dense(out.bytes, each.bytes) if is_dense(out) and is_dense(each) else family.overlap
        for each in operands
    ]


def _taking(of: Placed, family: Family, turn: bool) -> Callable[[Any], Any] | None:
    """What makes a tensor of an argument; None where the argument is it."""
    turned = of.turned
    if of.copied:
        dense = family.dense
        return lambda array: dense(array, turned)
    return (lambda array: array.T) if turned and turn else None


def _writing(request: CallRequest, family: Family, run: Runs, turn: bool) -> Callable[..., Any]:
    """What allocates the result or takes the caller's, and runs the kernel on it."""
    shape, target = request.shape, request.tensors[-1]
    empty, assign, overlaps = family.empty, family.assign, _overlaps(request, family)
    stored = shape[::-1] if target.turned else shape

    def made(tensors: Any, given: Any, out: Any) -> Any:
        result = empty(stored, given[0])
        run(*tensors, result)
        return result

    def into(tensors: Any, given: Any, out: Any) -> Any:
        for array, overlap in zip(given, overlaps, strict=True):
            if overlap(out, array):
                return copied(tensors, given, out)
        run(*tensors, out.T if target.turned and turn else out)
        return out

    def copied(tensors: Any, given: Any, out: Any) -> Any:
        # Inputs that would be overwritten are still to be read: as in NumPy, the result is copied there.
        result = made(tensors, given, None)
        assign(out, result.T if target.turned else result)
        return out

    if target.argument != "out":
        return made
    return copied if target.copied else into
