"""A tuned kernel as text: one .cu file, or one Python module with a function named as the operation's verb.

The .cu file has the config as constants, the kernel, a host launcher, and a main that checks.
"""

import math
import textwrap
from pathlib import Path

from tuner.declare.epilogue import E5M2, FLOAT8_DTYPES, ROUNDINGS, Epilogue
from tuner.declare.kernel import Kernel, Rendered
from tuner.declare.launch import COPY_ROWS, Launch, Step
from tuner.declare.problem import KEPT_BITS, PROMOTED, TOLERANCE_FACTOR, Scalar, roundings
from tuner.export.interface import Argument, Interface
from tuner.export.symbolic import filled, in_c, in_python

#: Our dtypes in CUDA C++.
C_TYPES = {
    "float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float", "float64": "double", "int32": "int",
    "int64": "long long", "uint8": "unsigned char", "float8_e4m3fn": "__nv_fp8_e4m3",
    "float8_e5m2": "__nv_fp8_e5m2",
}  # fmt: skip
#: Headers of CUDA that declare element types. Kernels may have types of their own for such elements.
HEADERS = {
    "float16": "cuda_fp16.h",
    "bfloat16": "cuda_bf16.h",
    "float8_e4m3fn": "cuda_fp8.h",
    "float8_e5m2": "cuda_fp8.h",
}
#: Launches that the exported main times.
_LAUNCHES = 20


def cuda_source(
    header: list[str], command: str, options: tuple[str, ...], rendered: Rendered, face: Interface
) -> str:
    """The text of the .cu file.

    Args:
        header: Lines for people.
        command: Compiles it alone, to check and time it.
        options: The compiler's when it was measured.
        rendered: Constants and kernel.
        face: What it takes, gives and launches.
    """
    launch, operation = face.launch or Launch((), ()), face.problem.operation
    dims = [name for name, _ in face.problem.shape]
    references = {
        name: textwrap.indent("\n".join([*_factors(face), textwrap.dedent(body).strip()]), "    ")
        for name, body in operation.c_reference.items()
    }
    on_device = [*(f"{argument.name}_device" for argument in face.arguments), *dims]
    on_device += [f"{C_TYPES[scalar.dtype]}({scalar.value!r})" for scalar in face.given]
    return filled(
        Path(__file__).with_name("source.cu.jinja"),
        {"type": _c_type, "c_type": C_TYPES.__getitem__, "extents": _extents, "size": _size},
        header=header, command=command, options=options, rendered=rendered, face=face, launch=launch,
        launches_itself=face.launch is None, arrays=face.arguments, verb=operation.verb,
        includes=_includes(face), copy_rows=COPY_ROWS, launches=_LAUNCHES, references=references,
        any_pointer=launch.steps or any(argument.tensor.dtype in HEADERS for argument in face.arguments),
        dims=dims, dims_taken=", ".join(f"long long {dim}" for dim in dims),
        dims_format=" x ".join("%lld" for _ in dims), on_device=", ".join(on_device),
        rules=face.rules(in_c, "&&"), passed=lambda step: _passed(step, face),
        tolerance=lambda argument: _tolerance(face, argument.tensor.dtype),
    )  # fmt: skip


def _c_type(argument: Argument) -> str:
    return C_TYPES[argument.tensor.dtype]


def _includes(face: Interface) -> list[str]:
    names = ["cmath", "cstdint", "cstdio", "cstdlib", "type_traits", "vector"]
    cuda = sorted(
        {HEADERS[argument.tensor.dtype] for argument in face.arguments if argument.tensor.dtype in HEADERS}
    )
    if face.launch and face.launch.maps:
        cuda, names = [*cuda, "cuda.h"], sorted([*names, "cstring"])
    return [*cuda, *names]


def _passed(step: Step, face: Interface) -> str:
    """What a launch passes.

    Const is cast away since a kernel may have declared none. The pointers of a run of several launches are
    passed as `Pointer`: the type is the function's affair, and a template takes any. Others are where the
    kernel may have a type of its own for the elements.
    """
    launch = face.launch or Launch((), ())

    def array(argument: Argument) -> str:
        name = argument.name if argument.tensor.output else f"const_cast<{_c_type(argument)}*>({argument.name})"
        pointer = f"{argument.name}_padded" if argument.padded else name
        return f"Pointer{{{pointer}}}" if launch.steps or argument.tensor.dtype in HEADERS else pointer

    def scalar(number: Scalar) -> str:
        return number.name if number.given else f"static_cast<{C_TYPES[number.dtype]}>({in_c(number.value)})"

    texts = face.texts(array, scalar, lambda first: f"Pointer{{workspace + ({in_c(first)})}}")
    texts |= {tensor_map.name: tensor_map.name for tensor_map in launch.maps} | {"workspace": "workspace"}
    if launch.counter:
        texts[launch.counter] = f"counter_{face.problem.operation.verb}()"
    return ", ".join(texts.get(name, "nullptr") for name in step.arguments)


def _extents(sizes: tuple[object, ...]) -> str:
    """Blocks or threads in x, y, z."""
    return ", ".join(str(size) if isinstance(size, int) else f"unsigned({in_c(size)})" for size in sizes)


def _size(shape: tuple[object, ...]) -> str:
    return " * ".join(f"({in_c(extent)})" for extent in shape)


def _factors(face: Interface) -> list[str]:
    """The numbers of the self-check as the reference has them."""
    return [f"const double {scalar.name} = {scalar.value!r};" for scalar in face.given]


def _tolerance(face: Interface, dtype: str) -> str:
    """`tuner.declare.problem.Problem.tolerance` as an expression."""
    of_result, of_sums = roundings(face.problem.operation, dtype)
    if not of_sums:
        return "0.0"
    grown = f"{TOLERANCE_FACTOR!r} * ldexp(1.0, {round(math.log2(of_sums))}) * sqrt(double({in_c(face.terms)}))"
    if face.problem.dtype in FLOAT8_DTYPES:
        inner = TOLERANCE_FACTOR * 2.0**-KEPT_BITS
        grown = f"({grown} + {inner!r} * sqrt(fmin({PROMOTED}, double({in_c(face.terms)}))))"
    if face.problem.epilogue:
        growth = Epilogue.read(face.problem.epilogue).growth
        grown = f"({growth!r} * {grown} + {ROUNDINGS * of_sums!r})"
    return f"({of_result!r} + {grown})" if of_result else grown


# --- a Python module -----------------------------------


def python_module(header: list[str], kernel: Kernel, rendered: Rendered, face: Interface) -> str:
    """The text of the module: it imports CuPy and NumPy, or NumPy and Numba.

    Args:
        header: Lines for people.
        kernel: Gives the options.
        rendered: Constants and kernel.
        face: What it takes, gives and launches.
    """
    dims = [dim for dim, _ in face.problem.shape]
    missing = [dim for dim in dims if dim not in face.sources and dim not in face.fixed]
    cuda, launch = face.launch is not None, face.launch or Launch((), ())
    on_gpu = cuda or kernel.is_library
    own = {"": "numpy.uint64(0)", "workspace": "_workspace", launch.counter or "counter": "_counter(_device)"}
    maps = {tensor_map.name: f"_{tensor_map.name}" for tensor_map in launch.maps}
    texts = own | face.texts(
        lambda array: f"_array_{array.name}",
        lambda scalar: _number(scalar, cuda),
        lambda first: f"_workspace[{in_python(first)} :]",
    )

    def held(dtype: str) -> str:
        """As the library holds such numbers: CuPy has none of 8 bits."""
        return "uint8" if on_gpu and dtype in (*FLOAT8_DTYPES, E5M2) else dtype

    def described(array: Argument) -> str:
        dtype = array.tensor.dtype
        bits = "" if held(dtype) == dtype else f"the bits of {dtype} in a "
        return f"{array.name}: {bits}{held(dtype)} array of shape {_shape(array.given)}."

    def passed(step: Step) -> str:
        return ", ".join((texts | maps)[name] for name in step.arguments)

    return filled(
        Path(__file__).with_name("module.py.jinja"),
        {"shape": _shape, "corner": _corner, "in_f_string": _in_f_string, "held": held},
        header=header, kernel=kernel, rendered=rendered, face=face, launch=launch, cuda=cuda, on_gpu=on_gpu,
        xp="cupy" if on_gpu else "numpy", library="CuPy" if on_gpu else "NumPy",
        early=any(step.early for step in launch.steps),
        narrow=any(argument.tensor.dtype == "bfloat16" for argument in face.arguments),
        source=_quoted(rendered.text.strip()), options=("--std=c++17", *kernel.source.options),
        verb=face.problem.operation.verb, dims=dims, missing=missing,
        named=[*missing, *(scalar.name for scalar in face.given)],
        shown=", ".join(f"{dim}={{{dim}}}" for dim in dims), rules=face.rules(in_python, "and"),
        described=described, passed=passed,
    )  # fmt: skip


def _number(scalar: Scalar, cuda: bool) -> str:
    value = scalar.name if scalar.given else in_python(scalar.value)
    plain = "float" if scalar.dtype.startswith("float") else "int"
    return f"numpy.{scalar.dtype}({value})" if cuda else f"{plain}({value})"


def _quoted(text: str) -> str:
    """A Python string that reads as the source does, where it can."""
    plain = "'''" not in text and not text.endswith(("'", "\\"))
    return f"r'''\n{text}\n'''" if plain else repr(text)


def _shape(sizes: tuple[object, ...]) -> str:
    return f"({', '.join(in_python(size) for size in sizes)}{',' if len(sizes) == 1 else ''})"


def _corner(array: Argument) -> str:
    """The array's own elements in a larger one."""
    return ", ".join(f":{in_python(size)}" for size in array.tensor.shape)


def _in_f_string(sentence: str) -> str:
    return sentence.replace("\\", "\\\\").replace('"', '\\"').replace("{", "{{").replace("}", "}}")
