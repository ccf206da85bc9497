"""A CUDA kernel as one .cu file: the config as constants, the kernel, a host launcher, a main that checks."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tuner.declare.epilogue import ROUNDINGS, Epilogue
from tuner.declare.kernel import Rendered
from tuner.declare.launch import UNASKED_SHARED_BYTES, Launch
from tuner.declare.problem import TOLERANCE_FACTOR, Problem, Tensor, roundings
from tuner.export.cuda_launch import C_TYPES, HEADERS, c_type, extents, launch_text
from tuner.export.cuda_text import COUNTER, FINGERPRINT, GEOMETRY, MAIN, PADDED_COPY, POINTER, REFERENCE, WHOLE
from tuner.export.interface import Argument, Interface
from tuner.export.symbolic import in_c
from tuner.export.tensor_maps import C_HELPER

if TYPE_CHECKING:
    import numpy as np


#: Sums of a fingerprint.
SUMS = 16
#: Elements of all tensors together, and flops, up to which a reference is computed at export.
_MOST_ELEMENTS, _MOST_FLOPS = 2**22, 2**31


@dataclass(frozen=True)
class Fingerprint:
    """Sums of one output of one problem.

    Attributes:
        problem: Fixes the dims.
        output: Name of the tensor.
        sums: The reference's.
        allowed: How far a right output's may be off: what the tolerance allows each element, added up as
            errors of random sign are.
    """

    problem: Problem
    output: str
    sums: tuple[float, ...]
    allowed: tuple[float, ...]


def drawn(tensor: Tensor, seed: int) -> Any:
    """An input: multiples of 1/2048 in [-1, 1), or small whole numbers; the same as ``drawn`` in the source.

    Args:
        tensor: Shape and dtype.
        seed: Place of the tensor among the inputs, from 1.
    """
    import numpy as np

    mixed = _mixed(tensor, seed)
    if tensor.dtype in ("int32", "int64", "uint8"):
        small = (mixed % np.uint32(17)).astype(np.int64) - (0 if tensor.dtype == "uint8" else 8)
        return small.astype(tensor.dtype).reshape(tensor.shape)
    values = (mixed.astype(np.float64) - 2048.0) / 2048.0
    return values.astype(tensor.dtype).reshape(tensor.shape)


def _mixed(tensor: Tensor, seed: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    import math

    import numpy as np

    index = np.arange(math.prod(tensor.shape), dtype=np.uint32)
    mixed = index * np.uint32(2654435761) + np.uint32(seed * 40503)
    mixed = (mixed ^ (mixed >> np.uint32(16))) * np.uint32(0x45D9F3B)
    return (mixed ^ (mixed >> np.uint32(16))) >> np.uint32(20)


def fingerprints(problem: Problem, holds_for: Callable[[dict[str, int]], bool]) -> list[Fingerprint]:
    """Fingerprints of the outputs, at dims that are quick to compute and that the export holds for.

    Args:
        problem: The problem that was tuned; large dims are cut, once to a power of two and once to an
            odd number, so that both whole and cut tiles occur.
        holds_for: Whether the export may be used for some dims.
    """
    chosen: dict[tuple[int, ...], Problem] = {}
    for most in (10**18, 512, 509, 128, 125, 32, 29):
        dims = {dim: min(size, most) for dim, size in problem.shape}
        if holds_for(dims):
            cut = problem.at(dims)
            if _is_quick(cut):
                chosen.setdefault(tuple(dims.values()), cut)
    return [each for cut in list(chosen.values())[:2] for each in _of(cut)]


def _is_quick(problem: Problem) -> bool:
    elements = sum(tensor.bytes for tensor in problem.tensors)
    return elements <= _MOST_ELEMENTS * 8 and problem.work.flops <= _MOST_FLOPS


def _of(problem: Problem) -> list[Fingerprint]:
    import numpy as np

    arrays = {tensor.name: drawn(tensor, place + 1) for place, tensor in enumerate(problem.inputs)}
    reference = problem.operation.reference(np, problem, arrays)
    found = []
    for tensor in problem.outputs:
        whole = reference[tensor.name] if isinstance(reference, dict) else reference
        flat = np.asarray(whole, dtype=np.float64).ravel()
        each = problem.tolerance * (np.sqrt(np.mean(flat**2)) + np.abs(flat))
        place = np.arange(flat.size) % SUMS
        sign = 1.0 - 2.0 * (_mixed(tensor, 0) % np.uint32(2))
        sums = np.bincount(place, flat * sign, SUMS)
        allowed = np.sqrt(np.bincount(place, each**2, SUMS))
        found.append(Fingerprint(problem, tensor.name, tuple(sums.tolist()), tuple(allowed.tolist())))
    return found


#: Launches that the exported main times.
_LAUNCHES = 20


def cuda_source(header: list[str], rendered: Rendered, face: Interface) -> str:
    """The text of the .cu file.

    Args:
        header: Lines for people.
        rendered: Constants and kernel.
        face: What it takes and gives.
    """
    verb = face.problem.operation.verb
    launch = face.launch
    assert launch is not None, "a CUDA kernel has a launch"
    dims = [name for name, _ in face.problem.shape]
    pointers = [
        f"{'' if argument.tensor.output else 'const '}{c_type(argument)}* {argument.name}"
        for argument in face.arguments
    ]
    whole = WHOLE.substitute(
        header="\n".join(f"// {line}".rstrip() for line in header),
        verb=verb,
        includes=_includes(face),
        kernel=rendered.text.strip(),
        arrays="\n".join(f"//     {_described(argument)}" for argument in face.arguments),
        parameters=", ".join([*pointers, *(f"long long {dim}" for dim in dims), *_taken(face)]),
        checks=_checks(face),
        geometry="" if launch.steps else _geometry(rendered.entry, launch),
        helpers=_helpers(face, launch),
        launch=launch_text(rendered.entry, face),
    )
    return whole + _main(face)


def _taken(face: Interface) -> list[str]:
    """Numbers that the function takes behind the dims."""
    return [f"{C_TYPES[scalar.dtype]} {scalar.name}" for scalar in face.given]


def _values(face: Interface) -> list[str]:
    """What the self-check gives it for them."""
    return [f"{C_TYPES[scalar.dtype]}({scalar.value!r})" for scalar in face.given]


def _geometry(entry: str, launch: Launch) -> str:
    text = GEOMETRY.substitute(
        grid=extents(launch.grid), block=extents(launch.block), shared_bytes=in_c(launch.shared_bytes)
    )
    return text + _asking(entry, launch.shared_bytes)


def _described(argument: Argument) -> str:
    shape = " x ".join(in_c(size) for size in argument.tensor.shape)
    turned = " (the transpose of what is meant)" if argument.transposed else ""
    return f"{argument.name:10} {shape}{turned}{', written' if argument.tensor.output else ''}"


def _helpers(face: Interface, launch: Launch) -> str:
    """What the function that launches needs before it."""
    counter = COUNTER.substitute(verb=face.problem.operation.verb) if launch.counter else ""
    any_type = launch.steps or any(argument.tensor.dtype in HEADERS for argument in face.arguments)
    parts = (PADDED_COPY, launch.padded), (POINTER, any_type), (C_HELPER, launch.maps)
    return "".join(text for text, wanted in parts if wanted) + counter


def _includes(face: Interface) -> str:
    names = ["cmath", "cstdint", "cstdio", "cstdlib", "type_traits", "vector"]
    cuda = sorted({HEADERS[each.tensor.dtype] for each in face.arguments if each.tensor.dtype in HEADERS})
    if face.launch and face.launch.maps:
        cuda, names = [*cuda, "cuda.h"], sorted([*names, "cstring"])
    return "\n".join(f"#include <{name}>" for name in (*cuda, *names))


def _checks(face: Interface) -> str:
    dims = " || ".join(f"{name} < 1" for name, _ in face.problem.shape)
    lines = [f"    if ({dims}) return cudaErrorInvalidValue;"]
    for condition, sentence in face.rules(in_c, "&&"):
        if sentence:
            lines.append(f"    // {sentence}")
        lines.append(f"    if (!({condition})) return cudaErrorInvalidValue;")
    return "\n".join(lines)


def _asking(entry: str, size: object) -> str:
    """Leave for more dynamic shared memory than every launch may have."""
    if isinstance(size, int) and size <= UNASKED_SHARED_BYTES:
        return ""
    return textwrap.indent(
        f"const cudaError_t allowed = cudaFuncSetAttribute(\n"
        f"    ::{entry}, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes));\n"
        f"if (allowed != cudaSuccess) return allowed;\n",
        "    ",
    )


def _size(argument: Argument) -> str:
    return " * ".join(f"({in_c(size)})" for size in argument.tensor.shape)


def _main(face: Interface) -> str:
    problem = face.problem
    names = [name for name, _ in problem.shape]
    by_sums = [a for a in face.outputs if a.tensor.name not in problem.operation.c_reference]
    known = fingerprints(problem, face.holds_for) if by_sums else []
    return MAIN.substitute(
        functions="\n".join(_comparison(face, argument, known) for argument in face.outputs),
        launches=_LAUNCHES,
        verb=problem.operation.verb,
        dims=", ".join(f"long long {name}" for name in names),
        prepare=_prepare(face),
        compare="\n".join(_compare(face, argument) for argument in face.outputs),
        on_device=", ".join(
            [*(f"{argument.name}_device" for argument in face.arguments), *names, *_values(face)]
        ),
        flops=in_c(face.flops),
        free="\n".join(
            f'    must(cudaFree({argument.name}_device), "freeing");' for argument in face.arguments
        ),
        arity=1 + len(names),
        usage=" ".join(name.upper() for name in names),
        checked="\n".join(_checked_dims(known)),
        chosen="\n".join(
            f"    const long long {name} = count == 1 ? {value}LL : atoll(words[{place + 1}]);"
            for place, (name, value) in enumerate(problem.shape)
        ),
        names=", ".join(names),
    )


def _checked_dims(known: list[Fingerprint]) -> list[str]:
    """Runs for the dims of the fingerprints; a declared reference checks the dims that are timed."""
    dims = {", ".join(f"{value}LL" for _, value in each.problem.shape): None for each in known}
    return [f"    right = run({each}, false) && right;" for each in dims]


def _prepare(face: Interface) -> str:
    lines = []
    for place, argument in enumerate(face.inputs):
        name, kind = argument.name, c_type(argument)
        lines.append(f"    const std::vector<{kind}> {name} = drawn<{kind}>({_size(argument)}, {place + 1});")
    for argument in face.outputs:
        lines.append(f"    std::vector<{c_type(argument)}> {argument.name}({_size(argument)});")
    for argument in face.arguments:
        name, kind = argument.name, c_type(argument)
        lines.append(f"    {kind}* {name}_device = on_device({name});")
        if argument.tensor.output:
            lines.append(
                f'    must(cudaMemset({name}_device, 0xff, {name}.size() * sizeof({kind})), "poisoning");'
            )
    words = ", ".join(
        [
            *(f"{argument.name}_device" for argument in face.arguments),
            *(n for n, _ in face.problem.shape),
            *_values(face),
        ]
    )
    lines += [
        f'    must(launch_{face.problem.operation.verb}({words}), "launch");',
        '    must(cudaDeviceSynchronize(), "run");',
    ]
    for argument in face.outputs:
        name, kind = argument.name, c_type(argument)
        size = f"{name}.size() * sizeof({kind})"
        lines.append(
            f'    must(cudaMemcpy({name}.data(), {name}_device, {size}, cudaMemcpyDeviceToHost), "copying");'
        )
    return "\n".join(lines)


def _compare(face: Interface, argument: Argument) -> str:
    declared = argument.tensor.name in face.problem.operation.c_reference
    names = ", ".join(name for name, _ in face.problem.shape)
    given = [f"{each.name}.data()" for each in face.inputs] if declared else []
    call = f"worst_of_{argument.name}({', '.join([*given, argument.name, names])})"
    shape = " x ".join("%lld" for _ in face.problem.shape)
    return (
        f"    const double worst_{argument.name} = {call};\n"
        f"    if (worst_{argument.name} < 0) {{\n"
        f'        printf("{shape}: {argument.name} is not checked at these dims\\n", {names});\n'
        f"    }} else {{\n"
        f'        printf("{shape}: error of {argument.name} is %.3g of what is allowed\\n", {names}, '
        f"worst_{argument.name});\n"
        f"        right = right && worst_{argument.name} <= 1;\n"
        f"        ++checks;\n"
        f"    }}"
    )


def _comparison(face: Interface, argument: Argument, known: list[Fingerprint]) -> str:
    names = [name for name, _ in face.problem.shape]
    body = face.problem.operation.c_reference.get(argument.tensor.name)
    given = {
        "name": argument.name,
        "type": c_type(argument),
        "dims": ", ".join(f"long long {name}" for name in names),
        "names": ", ".join(names),
    }
    if body is None:
        own = [each for each in known if each.output == argument.tensor.name]
        rows = ",\n".join(f"        {_row(each)}" for each in own)
        return FINGERPRINT.substitute(given, sums=SUMS, known=rows)
    rounding = _tolerance(face, argument.tensor.dtype)
    return REFERENCE.substitute(
        given,
        inputs=", ".join(f"const {c_type(each)}* {each.name}" for each in face.inputs),
        input_names=", ".join(each.name for each in face.inputs),
        body=textwrap.indent("\n".join([*_factors(face), textwrap.dedent(body).strip()]), "    "),
        size=_size(argument),
        tolerance=rounding,
    )


def _factors(face: Interface) -> list[str]:
    """The numbers of the self-check as the reference has them."""
    return [f"const double {scalar.name} = {scalar.value!r};" for scalar in face.given]


def _tolerance(face: Interface, dtype: str) -> str:
    """`tuner.declare.problem.Problem.tolerance` as an expression."""
    of_result, of_sums = roundings(face.problem.operation, dtype)
    if not of_sums:
        return "0.0"
    grown = f"{TOLERANCE_FACTOR!r} * ldexp(1.0, {round(math.log2(of_sums))}) * sqrt(double({in_c(face.terms)}))"
    if face.problem.epilogue:
        growth = Epilogue.read(face.problem.epilogue).growth
        grown = f"({growth!r} * {grown} + {ROUNDINGS * of_sums!r})"
    return f"({of_result!r} + {grown})" if of_result else grown


def _row(each: Fingerprint) -> str:
    dims = ", ".join(str(value) for _, value in each.problem.shape)
    sums = ", ".join(repr(value) for value in each.sums)
    allowed = ", ".join(repr(value) for value in each.allowed)
    return f"{{{{{dims}}}, {{{sums}}}, {{{allowed}}}}}"
