"""The statements of an exported .cu file that queue one run."""

from __future__ import annotations

from tuner.export.cuda_text import LAUNCH, PADDED, PIECES
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
    if launch.padded:
        return _padded(entry, face)
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
    """Arguments of the kernel; const is cast away since a kernel may have declared none."""
    arrays = [
        instead.get(argument.tensor.name)
        or (argument.name if argument.tensor.output else f"const_cast<{c_type(argument)}*>({argument.name})")
        for argument in face.arguments
    ]
    scalars = [f"static_cast<{C_TYPES[scalar.dtype]}>({in_c(scalar.value)})" for scalar in face.scalars]
    return ", ".join([*arrays, *scalars])


def _padded(entry: str, face: Interface) -> str:
    assert face.launch is not None
    shapes = {each.tensor: each.shape for each in face.launch.padded}
    copies, results, freeing = [], [], []
    for argument in face.arguments:
        if argument.tensor.name not in shapes:
            continue
        name, kind = f"{argument.name}_padded", c_type(argument)
        sizes = [in_c(size) for size in (*argument.tensor.shape, *shapes[argument.tensor.name])]
        given = f"static_cast<const {kind}*>({'nullptr' if argument.tensor.output else argument.name})"
        copies.append(f"    {kind}* {name} = nullptr;")
        copies.append("    if (status == cudaSuccess)")
        copies.append(f"        status = padded({name}, {given}, {', '.join(sizes)}, stream);")
        if argument.tensor.output:
            rows, columns, _, pitch = (f"({size})" for size in sizes)
            row = f"{columns} * sizeof({kind})"
            results.append("    if (status == cudaSuccess)")
            results.append(
                f"        status = cudaMemcpy2DAsync({argument.name}, {row}, {name}, {pitch} * sizeof({kind}), "
                f"{row}, {rows}, cudaMemcpyDeviceToDevice, stream);"
            )
        freeing.append(f"    if ({name} != nullptr) cudaFreeAsync({name}, stream);")
    return PADDED.substitute(
        entry=entry,
        passed=_passed(face, {name: f"{_name(face, name)}_padded" for name in shapes}),
        copies="\n".join(copies),
        results="\n".join(results),
        freeing="\n".join(freeing),
    )


def _name(face: Interface, tensor: str) -> str:
    return next(argument.name for argument in face.arguments if argument.tensor.name == tensor)
