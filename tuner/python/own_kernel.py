"""Kernels of a user's own: CUDA text or a Python function becomes a declaration for given arguments."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy

from tuner.declare import own_source
from tuner.declare.catalogue import Catalogue, from_file
from tuner.declare.language import source_language
from tuner.declare.own import OwnKernel, Reference
from tuner.declare.problem import DTYPE_BYTES, Problem
from tuner.declare.shapes import KernelArgument, read_shapes, shapes_of
from tuner.devices.settings import cache_root, cache_trouble
from tuner.errors import InputError, UnknownName
from tuner.python.arrays import is_array, operand_of

#: Parameter that sets the number of Numba's threads.
THREADS = "THREADS"
#: Endings of files of CUDA source.
CUDA_FILES = (".cu", ".cuh")
#: How inputs are drawn for checks.
INPUTS = ("drawn", "resampled", "given")
#: Names of Kernel Tuner for the threads of a block.
BLOCK_SIZES = ("block_size_x", "block_size_y", "block_size_z")
#: Options that are expressions over parameters.
LAUNCH = ("restrictions", "grid", "block", "shared_bytes", "grid_div_x", "grid_div_y", "grid_div_z")
#: What an argument that is no array may be.
NUMBERS = (bool, int, float, numpy.bool_, numpy.integer, numpy.floating)
_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD


class KernelCode:
    """A kernel before it has arguments: CUDA text with the name of a function in it, or a Python function.

    Attributes:
        name: Name of the function.
        target: ``cuda`` or ``cpu``.
        takes: Names of its arguments, in order, parameters left out.
        outputs: Names of the arrays that it writes.
        text: CUDA source; empty for a function.
        function: Python function; None for CUDA.
        parameters: The tunable choices.
        defaults: Values of parameters to try first.
        answers: Output -> its right numbers; empty where a function tells what is right.
        options: What `tuner.tune` takes of `OwnOptions`.
        free: Names of the whole numbers that are no sizes.
    """

    def __init__(self, what: Any, name: str, params: object, options: Mapping[str, Any]) -> None:
        """Reads the code, and whatever of the options needs no arguments.

        Raises:
            DeclarationError: It cannot be read.
            InputError: Parameters without values, or that nothing uses; an option that does not suit.
        """
        self.parameters, self.options = _parameters(params), options
        self._signature: dict[str, KernelArgument] = {}
        self.defaults: dict[str, Any] = dict(options.get("defaults") or {})
        if isinstance(what, str | Path):
            written = self._read_cuda(what, name)
        else:
            written = self._read_function(what, name)
        self.outputs = _texts(options.get("outputs"))
        self.answers: dict[str, Any] = {}
        if options.get("reference") is None and options.get("answer") is not None:
            self._read_answer(options["answer"], written)
        self.outputs = self.outputs or tuple(self.answers) or written
        self.free = _texts(options.get("numbers"))
        for number in self.free:
            if number not in self.takes:
                raise InputError(
                    f"numbers= names arguments ({', '.join(self.takes)}), got {number!r}; correct it"
                )
        read_shapes(options.get("shapes") or {}, self.takes)
        self._check_used()

    def _read_cuda(self, what: str | Path, name: str) -> tuple[str, ...]:
        """Reads CUDA text or its file, and names the arrays that are not ``const``."""
        if not name:
            raise InputError(
                'CUDA text goes with the name of its function, got none; tune(source, "name", ...)'
            )
        self.name, self.target, self.text, self.function = name, "cuda", _cuda_text(what), None
        self._signature = {argument.name: argument for argument in own_source.taken_by(self.text, name)}
        self.takes = tuple(self._signature)
        return tuple(argument.name for argument in self._signature.values() if argument.output)

    def _read_function(self, function: Any, name: str) -> tuple[str, ...]:
        """Reads a Python function, and names the arrays to whose elements it assigns."""
        inner, _ = own_source.unwrapped(function)
        self.name, self.target, self.text, self.function = name or inner.__name__, "cpu", "", function
        signature = inspect.signature(inner).parameters
        self.takes = tuple(argument for argument in signature if argument not in self.parameters)
        usual = {name: signature[name].default for name in self.parameters if name in signature}
        own = {name: value for name, value in usual.items() if value in self.parameters[name]}
        self.defaults = own | self.defaults
        written = set()
        for node in ast.walk(own_source.definition(inner)):
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                array: ast.expr = node
                while isinstance(array, ast.Subscript):
                    array = array.value
                written.add(getattr(array, "id", ""))
        return tuple(argument for argument in self.takes if argument in written)

    def _read_answer(self, answer: Any, written: tuple[str, ...]) -> None:
        """Right numbers by output: named, in the order of the arguments, or for the only output."""
        if isinstance(answer, list | tuple) and len(answer) == len(self.takes):
            answer = {name: array for name, array in zip(self.takes, answer, strict=True) if array is not None}
        elif not isinstance(answer, Mapping):
            outputs = self.outputs or written
            if len(outputs) != 1:
                raise InputError(f"answer= has an array for each of {', '.join(outputs)}; give them by name")
            answer = {outputs[0]: answer}
        self.answers = {name: on_host(array).astype("float64") for name, array in answer.items()}

    def _check_used(self) -> None:
        """Refuses parameters that nothing uses: each of their values would be tried in vain."""
        source = self.text or self._module(self.name).text
        words = set(re.findall(r"\w+", " ".join([source, *(str(self.options.get(name)) for name in LAUNCH)])))
        for name in self.parameters:
            if name not in words | {THREADS, *BLOCK_SIZES}:
                capitals = sorted(word for word in words if word.isupper())
                raise InputError(
                    f"neither {self.name} nor its launch uses the parameter {name!r} (in capitals there: "
                    f"{', '.join(capitals) or 'none'}); correct its name, or leave it out"
                )

    def bound(self, arguments: Any) -> dict[str, Any]:
        """Arguments by name, given in order or by name."""
        return self.named(**arguments) if isinstance(arguments, Mapping) else self.named(*arguments)

    def named(self, *arguments: Any, **by_name: Any) -> dict[str, Any]:
        """Arguments by name.

        Args:
            arguments: In the order of the names.
            by_name: Those that are given by name.

        Raises:
            InputError: Some are missing, or too many.
        """
        signature = inspect.Signature([inspect.Parameter(name, _POSITIONAL) for name in self.takes])
        try:
            return signature.bind(*arguments, **by_name).arguments
        except TypeError as error:
            raise InputError(
                f"{self.name} takes {len(self.takes)} arguments ({', '.join(self.takes)}), got "
                f"{len(arguments) + len(by_name)}: {error}; give one for each, parameters left out"
            ) from None

    def problem(self, values: Mapping[str, Any], tie: bool = False) -> tuple[Catalogue, Problem]:
        """Writes the declaration for arguments like these, and returns its catalogue and problem.

        Args:
            values: Arrays and numbers by name.
            tie: See `shapes_of`.

        Raises:
            InputError: The arguments do not suit the kernel, or leave something open; the message says what.
            DeclarationError: Something that was given as text or function cannot be read.
            EnvironmentTrouble: The folder of caches cannot be written.
        """
        own = self.declaration(values, tie)
        try:
            catalogue = from_file(own.write(cache_root() / "declared"))
        except OSError as error:
            raise cache_trouble(error) from error
        return catalogue, catalogue.operation(own.name).problem(own.sizes.sizes)

    def declaration(self, values: Mapping[str, Any], tie: bool = False) -> OwnKernel:
        """All that is declared for arguments like these; see `problem`."""
        given = [described(name, value, self._signature.get(name)) for name, value in values.items()]
        arrays = ", ".join(argument.name for argument in given if argument.shape is not None) or "none"
        for name in self.outputs:
            if name not in arrays.split(", "):
                raise InputError(f"outputs= names arrays ({arrays}), got {name!r}; correct it")
        if not self.outputs:
            raise InputError(
                f"a kernel writes an array, and nothing tells which of {arrays}; name it by outputs="
            )
        given = [replace(argument, output=argument.name in self.outputs) for argument in given]
        options, has_launch = self.options, source_language(self.target).has_launch
        own = OwnKernel(
            self.name, self.target, self._source(given), tuple(given),
            shapes_of(given, options.get("shapes") or {}, self.free, tie), self.parameters,
            rules=_texts(options.get("restrictions")), terms=str(options.get("terms", 1)),
            flops=str(options.get("flops", 0)), defaults=self.defaults,
            threads=THREADS if not has_launch and THREADS in self.parameters else "",
        )  # fmt: skip
        own = self._checked(own, values)
        return replace(own, launch=self._launch(own.sizes.sizes)) if has_launch else own

    def _source(self, given: Sequence[KernelArgument]) -> str:
        """The source as a file of its own, whose function takes arrays before numbers."""
        if self.text:
            return own_source.callable_from_c(self.text, self.name)
        order = [argument.name for argument in sorted(given, key=lambda argument: argument.shape is None)]
        plain = order == list(self.takes) and THREADS not in self.parameters
        inner, numbas = own_source.unwrapped(self.function)
        options = {"nogil": True, "parallel": "prange" in inner.__code__.co_names, **(numbas or {})}
        decorator = own_source.njit(options)
        if THREADS in self.parameters and options["parallel"]:
            decorator = decorator.replace("parallel=True", f"parallel={THREADS} > 1")
        module = self._module(self.name if plain else f"_{self.name}", decorator)
        module.lines.insert(0, "import numba")
        return module.text if plain else module.text + self._entry(order)

    def _module(self, name: str, decorator: str = "") -> own_source.Module:
        """The function without its parameters, under a name and below a decorator, with all that it uses."""
        inner, _ = own_source.unwrapped(self.function)
        node = own_source.definition(inner)
        node.name, node.decorator_list, node.returns = name, [], None
        node.args = ast.arguments([], list(map(ast.arg, self.takes)), None, [], [], None, [])
        module = own_source.Module(frozenset(self.parameters))
        module.add_node(node, inner, decorator)
        return module

    def _entry(self, order: Sequence[str]) -> str:
        """The function that takes arrays before numbers, and sets the number of threads."""
        call = f"_{self.name}({', '.join(self.takes)})"
        lines = ["", "", f"def {self.name}({', '.join(order)}):"]
        if THREADS in self.parameters:
            lines += [
                f"    if {THREADS} == 1:", f"        {call}", "        return",
                "    before = numba.get_num_threads()",
                f"    numba.set_num_threads(min({THREADS}, numba.config.NUMBA_NUM_THREADS))",
                "    try:", f"        {call}", "    finally:", "        numba.set_num_threads(before)",
            ]  # fmt: skip
        else:
            lines.append(f"    {call}")
        return "\n".join([*lines, ""])

    def _checked(self, own: OwnKernel, values: Mapping[str, Any]) -> OwnKernel:
        """The declaration with what is right, the library, and the author's own numbers where needed."""
        mode, reference = self.options.get("inputs") or "drawn", self.options.get("reference")
        if mode not in INPUTS:
            raise UnknownName("way to draw inputs", mode, INPUTS)
        arrays = {f"answer:{name}": array for name, array in self.answers.items()}
        if arrays:
            mode = "given"
        elif reference is not None or self.function is not None:
            right = self._itself() if reference is None else _reference(own, reference, "its_reference")
            own = replace(own, reference=right, library=self._library(own))
        else:
            raise InputError(
                "each config is compared with what is right, and nothing tells that; give reference=, a "
                "function of NumPy arrays, or answer=, an array"
            )
        # All of the author's numbers are kept, or those that chance could not replace, such as indices.
        for tensor in own.tensors:
            if not tensor.output and (mode != "drawn" or not tensor.dtype.startswith("float")):
                arrays[tensor.name] = on_host(values[tensor.name])
        return replace(own, inputs=mode, arrays=arrays)

    def _itself(self) -> Reference:
        """The function at its first config, in float64: what it computes must not depend on its parameters."""
        first = {name: self.defaults.get(name, values[0]) for name, values in self.parameters.items()}
        options = dict(own_source.unwrapped(self.function)[1] or {})
        exact = {name: value for name, value in options.items() if name not in ("parallel", "fastmath")}
        module = self._module("its_own_result", own_source.njit(exact).replace("cache=True", "cache=False"))
        lines = ["import numba", *(f"{name} = {value!r}" for name, value in first.items()), module.text]
        return Reference("\n".join(lines), "its_own_result", self.takes, writes=True)

    def _library(self, own: OwnKernel) -> Reference | None:
        """What is timed beside the kernel: on a CPU the reference, unless something else is named."""
        reference = self.options.get("reference")
        library = self.options.get("library", None if source_language(self.target).has_launch else reference)
        if library is None:
            return None
        plain = library is reference and own_source.unwrapped(library)[1] is None
        title = "NumPy" if plain else getattr(library, "__name__", "library")
        return replace(_reference(own, library, "its_library"), title=title)

    def _launch(self, sizes: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
        """Grid, block and shared memory as expressions; by Kernel Tuner's names where nothing else is said.

        Raises:
            InputError: Nothing tells the block or the grid.
        """
        given = {name: _texts(self.options.get(name)) for name in ("grid", "block", "shared_bytes")}
        launch = {name: texts for name, texts in given.items() if texts}
        block = launch.setdefault("block", tuple(name for name in BLOCK_SIZES if name in self.parameters))
        if not block or ("grid" not in launch and self.options.get("problem_size") is None):
            raise InputError(
                "a launch has a grid (or problem_size=) and a block (or block_size_x ...), got less; give "
                'e.g. grid="ceil_div(n, BLOCK)", block="BLOCK"'
            )
        if "grid" in launch:
            return launch
        names = {str(size): name for name, size in sizes.items() if list(sizes.values()).count(size) == 1}
        grid = []
        for extent, axis in zip(_texts(self.options["problem_size"]), "xyz", strict=False):
            usual = [name for name in (f"block_size_{axis}",) if name in self.parameters]
            divisors = _texts(self.options.get(f"grid_div_{axis}", usual))
            product = " * ".join(f"({text})" for text in divisors) or "1"
            grid.append(f"ceil_div({names.get(extent, extent)}, {product})")
        return launch | {"grid": tuple(grid)}


def _parameters(params: object) -> dict[str, tuple[Any, ...]]:
    if not isinstance(params, Mapping) or not params:
        raise InputError(
            'a kernel is tuned by its parameters, got none; give e.g. params={"BLOCK": [64, 128, 256]}'
        )
    for name, values in params.items():
        if isinstance(values, str) or not isinstance(values, Sequence | numpy.ndarray) or not len(values):
            raise InputError(f"a parameter has a list of values, {name} has {values!r}; give e.g. [1, 2, 4]")
    return {
        str(name): tuple(value.item() if isinstance(value, numpy.generic) else value for value in values)
        for name, values in params.items()
    }


def is_cuda(what: str | Path) -> bool:
    """True for CUDA source or its file, rather than a problem in words or a file of declarations."""
    return "__global__" in str(what) or _is_cuda_file(str(what))


def _is_cuda_file(text: str) -> bool:
    return "\n" not in text and text.strip().endswith(CUDA_FILES)


def _cuda_text(what: str | Path) -> str:
    """CUDA source, given as such or by its file."""
    if isinstance(what, str) and not _is_cuda_file(what):
        return what
    try:
        return Path(str(what).strip()).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"CUDA source is a text or a file that can be read, got {what}: {error}") from error


def described(name: str, value: Any, taken: KernelArgument | None = None) -> KernelArgument:
    """An argument in words.

    Args:
        name: Its name.
        value: An array or a number.
        taken: What CUDA source takes in its place; None for a function of Python.

    Raises:
        InputError: It is neither, its dtype is not for kernels, or the source takes something else.
    """
    number = isinstance(value, NUMBERS)
    if not (number or is_array(value)):
        raise InputError(
            "an argument is an array (NumPy, CuPy, PyTorch, or one that speaks DLPack) or a number, "
            f"{name} is {type(value).__name__}; pass one of these"
        )
    if number:
        whole = not isinstance(value, float | numpy.floating)
        dtype = "int64" if whole else str(getattr(value, "dtype", "float64"))
        argument = KernelArgument(name, dtype, None, int(value) if whole else float(value))
    else:
        operand = operand_of(value)
        argument = KernelArgument(name, operand.dtype, tuple(map(int, operand.shape)))
    if argument.dtype not in DTYPE_BYTES:
        raise InputError(f"an argument is of {', '.join(DTYPE_BYTES)}, {name} is {argument.dtype}; convert it")
    if taken is None:
        return argument
    dtype = taken.dtype or argument.dtype
    cut_short = argument.dtype.startswith("float") and dtype.startswith("int")
    if (taken.shape is None) != number or (cut_short if number else dtype != argument.dtype):
        wanted = f"{'a number' if taken.shape is None else 'an array'} of {dtype}"
        got = f"{'a number' if number else 'an array'} of {argument.dtype}"
        raise InputError(f"{name} is {wanted} in the source, got {got}; pass the one for the other")
    return replace(argument, dtype=dtype)


def _texts(given: object) -> tuple[str, ...]:
    """One thing, or several, as texts."""
    if given is None:
        return ()
    return tuple(map(str, given)) if isinstance(given, tuple | list) else (str(given),)


def on_host(array: Any) -> numpy.ndarray[Any, Any]:
    """A NumPy array with an array's numbers."""
    if hasattr(array, "detach"):
        array = array.detach().cpu()
    elif hasattr(array, "get"):
        array = array.get()
    known = isinstance(array, numpy.ndarray) or hasattr(array, "__array__")
    return numpy.ascontiguousarray(array if known else numpy.from_dlpack(array))


def _reference(own: OwnKernel, function: Callable[..., Any], name: str) -> Reference:
    """A function written down under a name, with the arguments that it takes.

    It takes them by their names, or else the inputs in order.
    """
    if not callable(function):
        raise InputError(
            f"reference= is a function of the inputs, got {type(function).__name__}; an array goes to answer="
        )
    module = own_source.Module()
    if not module.take(function, name):
        raise InputError(
            f"a reference is a function of your own or of a library, got {function!r}; wrap it in a def"
        )
    if own_source.unwrapped(function)[1] is not None:
        module.lines.insert(0, "import numba")
    takes = _takes(own, function)
    return Reference(module.text, name, takes, writes=any(name in own.outputs for name in takes))


def _takes(own: OwnKernel, function: Callable[..., Any]) -> tuple[str, ...]:
    known = {argument.name for argument in own.arguments}
    inputs = tuple(tensor.name for tensor in own.tensors if not tensor.output)
    try:
        signature = inspect.signature(own_source.unwrapped(function)[0])
    except (TypeError, ValueError):  # such as a function in C
        return inputs
    named = signature.parameters.items()
    names = tuple(name for name, one in named if name in known or one.default is one.empty)
    if names and set(names) <= known:
        return names
    try:
        signature.bind(*inputs)
    except TypeError:
        raise InputError(
            f"a reference takes the kernel's inputs ({', '.join(inputs)}), or arguments by their names; "
            f"{getattr(function, '__name__', function)} takes {', '.join(names)}"
        ) from None
    return inputs
