"""The statements of an exported .cu file that queue one run."""

from __future__ import annotations

from tuner.declare.launch import UNASKED_SHARED_BYTES, Step
from tuner.declare.problem import Scalar
from tuner.export.cuda_text import EARLY, LAUNCH, NEXT, ORDINARY, PIECES, STEP, WITH_MEMORY
from tuner.export.interface import Argument, Interface
from tuner.export.symbolic import in_c
from tuner.export.tensor_maps import in_cuda

#: Our dtypes in CUDA C++.
C_TYPES = {
    "float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float", "float64": "double", "int32": "int",
    "int64": "long long", "uint8": "unsigned char",
}  # fmt: skip
#: Headers of CUDA that declare element types. Kernels may have types of their own for such elements.
HEADERS = {"float16": "cuda_fp16.h", "bfloat16": "cuda_bf16.h"}


def c_type(argument: Argument) -> str:
    """An array's element type in CUDA C++."""
    return C_TYPES[argument.tensor.dtype]


def launch_text(entry: str, face: Interface) -> str:
    """Launches the kernel, with the copies that belong to a run.

    Args:
        entry: The kernel.
        face: What it takes and gives.
    """
    launch = face.launch
    assert launch is not None, "a CUDA kernel has a launch"
    if launch.padded or launch.workspace or launch.steps:
        return _with_memory(entry, face)
    if launch.pieces is None:
        return LAUNCH.substitute(entry=entry, passed=_passed(face, {}))
    pieces = launch.pieces
    argument = next(each for each in face.arguments if each.tensor.name == pieces.tensor)
    return PIECES.substitute(
        entry=entry,
        passed=_passed(face, {}),
        array=argument.name,
        size=" * ".join(f"({in_c(size)})" for size in argument.tensor.shape),
        type=c_type(argument),
        symbol=pieces.symbol,
        elements=pieces.elements,
    )


def _passed(face: Interface, instead: dict[str, str]) -> str:
    """Arguments of the kernel; const is cast away since a kernel may have declared none.

    A workspace is passed as bytes: its type is the kernel's affair.
    """
    arrays = [_array(argument, instead) for argument in face.arguments]
    scalars = [_scalar(scalar) for scalar in face.scalars]
    own = ["workspace"] if face.launch and face.launch.workspace else []
    return ", ".join([*arrays, *scalars, *own])


def _array(argument: Argument, instead: dict[str, str]) -> str:
    given = argument.name if argument.tensor.output else f"const_cast<{c_type(argument)}*>({argument.name})"
    found = instead.get(argument.tensor.name) or given
    return _anything(found) if argument.tensor.dtype in HEADERS else found


def _scalar(scalar: Scalar) -> str:
    if scalar.given:
        return scalar.name
    return f"static_cast<{C_TYPES[scalar.dtype]}>({in_c(scalar.value)})"


def _with_memory(entry: str, face: Interface) -> str:
    """A launch that takes memory from the stream's pool: for padded arrays, for a workspace."""
    assert face.launch is not None
    shapes = {each.tensor: each.shape for each in face.launch.padded}
    copies, results, freeing = [], [], []
    for argument in face.arguments:
        if argument.tensor.name not in shapes:
            continue
        name, kind = f"{argument.name}_padded", c_type(argument)
        sizes = [in_c(size) for size in (*argument.tensor.shape, *shapes[argument.tensor.name])]
        given = f"static_cast<const {kind}*>({'nullptr' if argument.tensor.output else argument.name})"
        copies.append("    // A larger copy, with zeros beyond the array's own elements.")
        copies.append(f"    {kind}* {name} = nullptr;")
        copies.append("    if (status == cudaSuccess)")
        copies.append(f"        status = padded({name}, {given}, {', '.join(sizes)}, stream);")
        if argument.tensor.output:
            rows, columns, _, pitch = (f"({size})" for size in sizes)
            results.append("    if (status == cudaSuccess)")
            results.append(
                f"        status = copied({argument.name}, {columns}, static_cast<const {kind}*>({name}), "
                f"{pitch}, {rows}, {columns}, stream);"
            )
        freeing.append(f"    if ({name} != nullptr) cudaFreeAsync({name}, stream);")
    if face.launch.workspace:
        size, zeroed = in_c(face.launch.workspace.bytes), in_c(face.launch.workspace.zeroed_bytes)
        copies.append("    // The kernel's own memory; only its first bytes must be zeros.")
        copies.append("    unsigned char* workspace = nullptr;")
        copies.append("    if (status == cudaSuccess)")
        copies.append(f"        status = cudaMallocAsync(&workspace, {size}, stream);")
        copies.append("    if (status == cudaSuccess)")
        copies.append(f"        status = cudaMemsetAsync(workspace, 0, {zeroed}, stream);")
        freeing.append("    if (workspace != nullptr) cudaFreeAsync(workspace, stream);")
    instead = {name: f"{_name(face, name)}_padded" for name in shapes}
    copies += in_cuda(face, {each.tensor.name: each.name for each in face.arguments} | instead)
    launches = [_step(step, face, instead) for step in face.launch.steps]
    return WITH_MEMORY.substitute(
        launches="\n".join(launches) or NEXT.substitute(entry=entry, passed=_passed(face, instead)),
        copies="\n".join(copies),
        results="\n".join(results),
        freeing="\n".join(freeing),
    )


def _step(step: Step, face: Interface, instead: dict[str, str]) -> str:
    """One launch of several, with its own geometry and arguments."""
    assert face.launch is not None
    named = {each.tensor.name: _array(each, instead) for each in face.arguments}
    by_value = {*(each.name for each in face.scalars), *(each.name for each in face.launch.maps)}
    named |= {each.name: each.name for each in face.launch.maps}
    named |= {each.name: _scalar(each) for each in face.scalars}
    workspace = face.launch.workspace
    named |= {name: f"workspace + ({in_c(first)})" for name, first in (workspace.regions if workspace else ())}
    counter = f"counter_{face.problem.operation.verb}()"
    # The pointers' types are the function's affair: a template takes any.
    passed = [
        named[name] if name in by_value
        else counter if name and name == face.launch.counter
        else _anything(named.get(name))
        for name in step.arguments
    ]  # fmt: skip
    size = step.shared_bytes
    asks = not isinstance(size, int) or size > UNASKED_SHARED_BYTES
    attribute = (
        f"cudaFuncSetAttribute(::{step.entry}, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes))"
    )
    return STEP.substitute(
        grid=extents(step.grid),
        block=extents(step.block),
        shared_bytes=in_c(size),
        asking=f"        status = {attribute};\n" if asks else "",
        launched=(EARLY if step.early else ORDINARY).substitute(entry=step.entry, passed=", ".join(passed)),
    )


def _anything(pointer: str | None) -> str:
    """A pointer of any type; null where there is none."""
    if pointer is None or pointer.startswith("Pointer{"):
        return pointer or "nullptr"
    return f"Pointer{{{pointer}}}"


def extents(sizes: tuple[object, ...]) -> str:
    """Blocks or threads in x, y, z."""
    return ", ".join(str(size) if isinstance(size, int) else f"unsigned({in_c(size)})" for size in sizes)


def _name(face: Interface, tensor: str) -> str:
    return next(argument.name for argument in face.arguments if argument.tensor.name == tensor)
