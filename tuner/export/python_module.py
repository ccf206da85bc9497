"""A kernel as one Python module with a function named as the operation's verb."""

from pathlib import Path

from tuner.declare.epilogue import E5M2, FLOAT8_DTYPES
from tuner.declare.kernel import Kernel, Rendered
from tuner.declare.launch import Launch, Step
from tuner.declare.problem import Scalar
from tuner.export.interface import Argument, Interface
from tuner.export.symbolic import filled, in_python


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
