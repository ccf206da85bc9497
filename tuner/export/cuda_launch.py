"""The statements of an exported .cu file that queue one run."""

from __future__ import annotations

from tuner.export.cuda_text import LAUNCH, PIECES, WITH_MEMORY
from tuner.export.interface import Argument, Interface
from tuner.export.symbolic import in_c

#: Our dtypes in CUDA C++.
C_TYPES = {
    "float16": "__half", "float32": "float", "float64": "double", "int32": "int", "int64": "long long",
    "uint8": "unsigned char",
}  # fmt: skip


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
    if launch.padded or launch.workspace:
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
    arrays = [
        instead.get(argument.tensor.name)
        or (argument.name if argument.tensor.output else f"const_cast<{c_type(argument)}*>({argument.name})")
        for argument in face.arguments
    ]
    scalars = [f"static_cast<{C_TYPES[scalar.dtype]}>({in_c(scalar.value)})" for scalar in face.scalars]
    own = ["workspace"] if face.launch and face.launch.workspace else []
    return ", ".join([*arrays, *scalars, *own])


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
    return WITH_MEMORY.substitute(
        entry=entry,
        passed=_passed(face, {name: f"{_name(face, name)}_padded" for name in shapes}),
        copies="\n".join(copies),
        results="\n".join(results),
        freeing="\n".join(freeing),
    )


def _name(face: Interface, tensor: str) -> str:
    return next(argument.name for argument in face.arguments if argument.tensor.name == tensor)
