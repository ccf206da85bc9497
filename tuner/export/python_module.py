"""A kernel as one Python module with a function named as the operation's verb."""

from __future__ import annotations

from collections.abc import Callable
from string import Template

from tuner.declare.kernel import Kernel, Rendered
from tuner.declare.language import source_language
from tuner.declare.launch import UNASKED_SHARED_BYTES, Launch, Pieces, Workspace
from tuner.declare.problem import Scalar, Tensor
from tuner.export.interface import Argument, Interface
from tuner.export.symbolic import in_python
from tuner.export.tensor_maps import PYTHON_HELPER, in_module

_WHOLE = Template("""\
$header

$imports
$kernel

# ---------------------------------------------------------------- $verb


def ceil_div(numerator, denominator):
    \"""Smallest whole number not below numerator / denominator.\"""
    return -(-numerator // denominator)


def _given(name, array, dtype, ndim):
    if not isinstance(array, $arrays.ndarray):
        raise TypeError(f"$verb: {name} must be a $library array, got {type(array).__name__}")
    if array.dtype != dtype:
        raise TypeError(f"$verb: {name} must be {dtype}, got {array.dtype}; convert it with .astype({dtype!r})")
    if array.ndim != ndim:
        raise ValueError(f"$verb: {name} must have {ndim} dimensions, got {array.ndim}")


def _shaped(name, array, meant, shape):
    if array.shape != shape:
        raise ValueError(f"$verb: {name} must be {meant}, here {shape}, got shape {array.shape}")


$dense


def $signature:
    \"""$what

    Arguments of any strides are taken; the kernel reads them as described, others are copied first.

$arguments
    Returns:
$returns
    Raises:
        TypeError: An argument is no $library array, or of another dtype.
        ValueError: Shapes do not fit together, or this config is not made for them.
    \"""
$checks
$run
    return $outputs
""")

_DENSE_CUPY = '''\
def _dense(array):
    """The array as the kernel reads it: row-major, at a multiple of 16 bytes; a copy where it is not."""
    array = cupy.ascontiguousarray(array)
    return array if array.data.ptr % 16 == 0 else array.copy()'''

_DENSE_NUMPY = '''\
def _dense(array):
    """The array as the kernel reads it: row-major; a copy where it is not."""
    return numpy.require(array, requirements=["C", "A"])'''

_CUDA = Template("""\
SOURCE = $source


@functools.cache
def _module(device):
    \"""The source, compiled for the present device at the first call.\"""
$module


$get""")

#: CuPy compiles for the device's architecture as every chip of it has it, without instructions of one alone.
_OF_ONE_ARCHITECTURE = Template("""\
    import tempfile

    from cupy_backends.cuda.libs import nvrtc

    program = nvrtc.createProgram(SOURCE, "kernel.cu", (), ())
    try:
        nvrtc.compileProgram(program, ($options, "--gpu-architecture=$architecture"))
    except nvrtc.NVRTCError:
        raise RuntimeError(nvrtc.getProgramLog(program)) from None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(nvrtc.getCUBIN(program) + b"\\0")
        file.flush()
        module = cupy.RawModule(path=file.name)
        module.compile()
    return module""")

_KERNEL = Template("""\
@functools.cache
def _kernel(device):
    \"""The kernel on the present device.\"""
    return _module(device).get_function("$entry")
""")

_FUNCTIONS = """\
@functools.cache
def _function(device, name):
    \"""A function of the source on the present device.\"""
    return _module(device).get_function(name)
"""

_COUNTER = """

@functools.cache
def _counter(device):
    return cupy.zeros(1, dtype="uint32")


def fallbacks():
    \"\"\"Runs on the present device that the plain kernel had to compute; waits for those queued.\"\"\"
    return int(_counter(cupy.cuda.runtime.getDevice())[0])
"""


#: A launch that may start while the one before it ends. CuPy's have no attributes, so the driver is called.
_EARLY = '''\
class _Attribute(ctypes.Structure):  # CUlaunchAttribute
    _fields_ = [("id", ctypes.c_int), ("value", ctypes.c_uint64 * 8)]


class _Config(ctypes.Structure):  # CUlaunchConfig
    _fields_ = [
        ("sizes", ctypes.c_uint * 7), ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    ]


def _launched_early(function, grid, block, arguments, shared_mem):
    """Launches a kernel that may start while the launch before it ends: it waits itself."""
    driver, version = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.byref(version)) or version.value < 12030:  # graphs take it since 12.3
        return function(grid, block, arguments, shared_mem=shared_mem)
    given = [numpy.uint64(each.data.ptr) if isinstance(each, cupy.ndarray) else each for each in arguments]
    given = [numpy.asarray(each) for each in given]
    addresses = (ctypes.c_void_p * len(given))(*(each.ctypes.data for each in given))
    sizes = (*(*grid, 1, 1)[:3], *(*block, 1, 1)[:3], shared_mem)
    early = _Attribute(6, (1,))  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    config = _Config(sizes, cupy.cuda.get_current_stream().ptr, ctypes.pointer(early), 1)
    status = driver.cuLaunchKernelEx(
        ctypes.byref(config), ctypes.c_void_p(function.kernel.ptr), addresses, None
    )
    if status:
        raise RuntimeError(f"cuLaunchKernelEx failed with status {status}")


'''


def python_module(header: list[str], kernel: Kernel, rendered: Rendered, face: Interface) -> str:
    """The text of the module: it imports CuPy and NumPy, or NumPy and Numba.

    Args:
        header: Lines for people.
        kernel: Gives the options.
        rendered: Constants and kernel.
        face: What it takes and gives.
    """
    operation = face.problem.operation
    cuda = source_language(rendered.target).has_launch
    missing = [dim for dim, _ in face.problem.shape if dim not in face.sources and dim not in face.fixed]
    given = [argument.name for argument in face.inputs]
    named = [*missing, *(scalar.name for scalar in face.given)]
    imports = "import functools\n\nimport cupy\nimport numpy\n"
    maps = rendered.launch.maps if rendered.launch else ()
    starts_early = any(step.early for step in (rendered.launch.steps if rendered.launch else ()))
    imports = f"import ctypes\n{imports}" if maps or starts_early else imports
    narrow = "import ml_dtypes  # NumPy knows bfloat16 by it\n" if _has(face, "bfloat16") else ""
    return _WHOLE.substitute(
        header="\n".join(f"# {line}".rstrip() for line in header),
        imports=(imports if cuda else "import numpy\n") + narrow,
        kernel=_cuda_kernel(kernel, rendered)
        if cuda
        else f"{rendered.text.strip()}\n\n\n_entry = {rendered.entry}",
        library="CuPy" if cuda else "NumPy",
        arrays="cupy" if cuda else "numpy",
        verb=operation.verb,
        dense=(PYTHON_HELPER if maps else "")
        + (_EARLY if starts_early else "")
        + (_DENSE_CUPY if cuda else _DENSE_NUMPY),
        signature=f"{operation.verb}({', '.join([*given, *(['*', *named] if named else [])])})",
        what=f"{operation.name} in {face.problem.dtype}, as tuned for {face.problem}.",
        arguments=_arguments(face, missing),
        returns="".join(f"        {_described(argument)}\n" for argument in face.outputs),
        checks="\n".join(_checks(face)),
        run="\n".join(_run(face)),
        outputs=", ".join(argument.name for argument in face.outputs),
    )


def _has(face: Interface, dtype: str) -> bool:
    """Whether an array is of that dtype."""
    return any(argument.tensor.dtype == dtype for argument in face.arguments)


def _cuda_kernel(kernel: Kernel, rendered: Rendered) -> str:
    options = ("--std=c++17", *kernel.options)
    several = rendered.launch is not None and rendered.launch.steps
    get = _FUNCTIONS if several else _KERNEL.substitute(entry=rendered.entry)
    if rendered.launch is not None and rendered.launch.counter:
        get += _COUNTER
    if kernel.architecture:
        named = ", ".join(repr(each) for each in options)
        module = _OF_ONE_ARCHITECTURE.substitute(options=named, architecture=kernel.architecture)
    else:
        module = f"    return cupy.RawModule(code=SOURCE, options={options!r})"
    return _CUDA.substitute(source=_quoted(rendered.text.strip()), module=module, get=get)


def _quoted(text: str) -> str:
    """A Python string that reads as the source does, where it can."""
    plain = "'''" not in text and not text.endswith(("'", "\\"))
    return f"r'''\n{text}\n'''" if plain else repr(text)


def _shape(sizes: tuple[object, ...]) -> str:
    return f"({', '.join(in_python(size) for size in sizes)}{',' if len(sizes) == 1 else ''})"


def _described(argument: Argument) -> str:
    return f"{argument.name}: {argument.tensor.dtype} array of shape {_shape(argument.given)}."


def _arguments(face: Interface, missing: list[str]) -> str:
    lines = ["    Args:"]
    for argument in face.inputs:
        stored = "column-major" if argument.transposed else "row-major"
        lines.append(f"        {_described(argument)} Read as it lies where it is {stored}.")
    lines += [f"        {dim}: A whole number of 1 or more." for dim in missing]
    lines += [f"        {scalar.name}: A number, {scalar.dtype}." for scalar in face.given]
    return "\n".join(lines) + "\n"


def _checks(face: Interface) -> list[str]:
    """Statements that check the arguments and name the dims."""
    verb = face.problem.operation.verb
    lines = [
        f'    _given("{argument.name}", {argument.name}, "{argument.tensor.dtype}", {len(argument.given)})'
        for argument in face.inputs
    ]
    lines += [f"    {dim} = {name}.shape[{axis}]" for dim, (name, axis) in face.sources.items()]
    lines += [f"    {dim} = {value}" for dim, value in face.fixed.items() if dim not in face.sources]
    lines += [
        f'    _shaped("{each.name}", {each.name}, "{_shape(each.given)}", {_shape(each.given)})'
        for each in face.inputs
    ]
    dims = [dim for dim, _ in face.problem.shape]
    lines.append(f"    if min({', '.join([*dims, '1'])}) < 1:")
    shown = ", ".join(f"{dim}={{{dim}}}" for dim in dims)
    lines.append(f'        raise ValueError(f"{verb}: no dim may be empty, got {shown}")')
    for condition, sentence in face.rules(in_python, "and"):
        why = f" ({_literal(sentence)})" if sentence else ""
        lines.append(f"    if not ({condition}):")
        lines.append("        raise ValueError(")
        lines.append(f'            f"{verb}: {condition} must hold{why}, got {shown}"')
        lines.append("        )")
    return lines


def _literal(sentence: str) -> str:
    """A sentence inside an f-string."""
    return sentence.replace("\\", "\\\\").replace('"', '\\"').replace("{", "{{").replace("}", "}}")


def _run(face: Interface) -> list[str]:
    library = "numpy" if face.launch is None else "cupy"
    lines = [
        f'    {each.name} = {library}.empty({_shape(each.tensor.shape)}, dtype="{each.tensor.dtype}")'
        for each in face.outputs
    ]
    arrays = {
        each.tensor.name: each.name
        if each.tensor.output
        else f"_dense({each.name}{'.T' if each.transposed else ''})"
        for each in face.arguments
    }
    if face.launch is None:
        scalars = [f"{_cast(scalar.dtype)}({_value(scalar)})" for scalar in face.scalars]
        return [*lines, f"    _entry({', '.join([*arrays.values(), *scalars])})"]
    lines += [*([] if face.launch.steps else _geometry(face.launch)), *_larger(face, arrays)]
    scalars = [f"numpy.{scalar.dtype}({_value(scalar)})" for scalar in face.scalars]
    if face.launch.steps:
        return [*lines, *_in_steps(face, arrays, scalars), *_results(face)]
    if face.launch.workspace:
        lines += _own_memory(face.launch.workspace)
        scalars.append("_workspace")

    def passed(*more: str) -> str:
        return ", ".join([*arrays.values(), *scalars, *more])

    if face.launch.pieces is None:
        lines.append(f"    _launched(_grid, _block, ({passed()},), shared_mem=_shared_bytes)")
    else:
        lines += _in_pieces(face.launch.pieces, arrays, passed)
    return [*lines, *_results(face)]


def _geometry(launch: Launch) -> list[str]:
    lines = [
        "    _launched = _kernel(cupy.cuda.runtime.getDevice())",
        f"    _shared_bytes = {in_python(launch.shared_bytes)}",
    ]
    if not isinstance(launch.shared_bytes, int) or launch.shared_bytes > UNASKED_SHARED_BYTES:
        lines.append("    _launched.max_dynamic_shared_size_bytes = _shared_bytes")
    return [*lines, f"    _grid, _block = {_shape(launch.grid)}, {_shape(launch.block)}"]


def _in_steps(face: Interface, arrays: dict[str, str], scalars: list[str]) -> list[str]:
    """The launches of a run that is several."""
    launch, lines = face.launch, []
    assert launch is not None
    for name, given in arrays.items():  # each is made dense once
        lines.append(f"    _array_{name} = {given}")
    named = {name: f"_array_{name}" for name in arrays}
    named |= {"": "numpy.uint64(0)", **({launch.counter: "_counter(_device)"} if launch.counter else {})}
    named |= {scalar.name: text for scalar, text in zip(face.scalars, scalars, strict=True)}
    if launch.workspace:
        lines += _own_memory(launch.workspace)
        named |= {name: f"_workspace[{in_python(first)} :]" for name, first in launch.workspace.regions}
    lines += in_module(face, named)
    named |= {each.name: f"_{each.name}" for each in launch.maps}
    lines.append("    _device = cupy.cuda.runtime.getDevice()")
    for step in launch.steps:
        passed = ", ".join(named[name] for name in step.arguments)
        size = in_python(step.shared_bytes)
        lines.append(f'    _launched = _function(_device, "{step.entry}")')
        if not isinstance(step.shared_bytes, int) or step.shared_bytes > UNASKED_SHARED_BYTES:
            lines.append(f"    _launched.max_dynamic_shared_size_bytes = {size}")
        geometry = f"{_shape(step.grid)}, {_shape(step.block)}"
        launched = f"_launched_early(_launched, {geometry}" if step.early else f"_launched({geometry}"
        lines.append(f"    {launched}, ({passed},), shared_mem={size})")
    return lines


def _own_memory(workspace: Workspace) -> list[str]:
    """The kernel's own memory, whose first bytes are zeros."""
    return [
        f'    _workspace = cupy.empty({in_python(workspace.bytes)}, dtype="uint8")',
        f"    _workspace[: {in_python(workspace.zeroed_bytes)}] = 0",
    ]


def _larger(face: Interface, arrays: dict[str, str]) -> list[str]:
    """Copies with zeros beyond the arrays' own elements; `arrays` then names them."""
    lines = []
    for padded in face.launch.padded if face.launch else ():
        tensor = next(each.tensor for each in face.arguments if each.tensor.name == padded.tensor)
        name, given = f"_larger_{padded.tensor}", arrays[padded.tensor]
        lines.append(f'    {name} = cupy.zeros({_shape(padded.shape)}, dtype="{tensor.dtype}")')
        if not tensor.output:
            lines.append(f"    {name}[{_corner(tensor)}] = {given}")
        arrays[padded.tensor] = name
    return lines


def _results(face: Interface) -> list[str]:
    names = {padded.tensor for padded in face.launch.padded} if face.launch else set()
    return [
        f"    {each.name}[...] = _larger_{each.tensor.name}[{_corner(each.tensor)}]"
        for each in face.outputs
        if each.tensor.name in names
    ]


def _corner(tensor: Tensor) -> str:
    return ", ".join(f":{in_python(size)}" for size in tensor.shape)


def _in_pieces(pieces: Pieces, arrays: dict[str, str], passed: Callable[..., str]) -> list[str]:
    """A launch for each piece of the array that passes through constant memory."""
    given, arrays[pieces.tensor] = arrays[pieces.tensor], "_whole"
    return [
        f"    _whole = {given}",
        f'    _piece = _module(cupy.cuda.runtime.getDevice()).get_global("{pieces.symbol}")',
        f"    for _first in range(0, _whole.size, {pieces.elements}):",
        f"        _bytes = min({pieces.elements}, _whole.size - _first) * _whole.itemsize",
        "        _piece.copy_from_device_async(_whole.data + _first * _whole.itemsize, _bytes)",
        f"        _launched(_grid, _block, ({passed('numpy.int32(_first)')},), shared_mem=_shared_bytes)",
    ]


def _value(scalar: Scalar) -> str:
    return scalar.name if scalar.given else in_python(scalar.value)


def _cast(dtype: str) -> str:
    return "float" if dtype.startswith("float") else "int"
