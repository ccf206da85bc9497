"""Kernels of a user's own: CUDA text or a Python function becomes a declaration for given arguments."""

from __future__ import annotations

import ast
import contextlib
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
from tuner.declare.space import Parameter
from tuner.devices.detect import kind_of
from tuner.devices.settings import cache_root, cache_trouble
from tuner.errors import InputError, UnknownName
from tuner.python.arrays import is_array, operand_of

#: Parameter that sets the number of Numba's threads.
THREADS = "THREADS"
#: Endings of files of CUDA source.
CUDA_FILES = (".cu", ".cuh")
#: How inputs are drawn for checks.
INPUTS = ("drawn", "resampled", "given")
#: Names of Kernel Tuner for the threads of a block, and for what divides the grid.
BLOCK_SIZES = ("block_size_x", "block_size_y", "block_size_z")
GRID_DIVISORS = ("grid_div_x", "grid_div_y", "grid_div_z")
#: What of a launch is said by expressions.
LAUNCH = ("grid", "block", "shared_bytes")
#: Python's and NumPy's kinds of numbers -> dtype of a scalar argument.
_KINDS = {"i": "int64", "u": "int64", "b": "int64", "f": "float64"}
_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD


class KernelCode:
    """A kernel before it has arguments: CUDA text with the name of a function in it, or a Python function.

    Attributes:
        name: Name of the function.
        target: ``cuda`` or ``cpu``.
        takes: Names of its arguments, in order, parameters left out.
        text: CUDA source; empty for a function.
        function: Python function; None for CUDA.
        parameters: The tunable choices.
        options: What `tuner.tune` takes of `OwnOptions`.
        free: Names of the whole numbers that are no sizes.
    """

    def __init__(self, what: object, name: str, params: object, options: Mapping[str, Any]) -> None:
        """Reads the code, and whatever of the options needs no arguments.

        Raises:
            DeclarationError: It cannot be read.
            InputError: Parameters without values, or that nothing uses; an option that does not suit.
        """
        self.parameters, self.options = _parameters(params), options
        self._defaults: dict[str, Any] = {}
        self._signature: dict[str, KernelArgument] = {}
        if isinstance(what, str | Path):
            self.text, self.target, self.function = _cuda_text(what), "cuda", None
            if not name:
                raise InputError(
                    'CUDA text goes with the name of its function, got none; tune(source, "name", ...)'
                )
            self.name, self._signature = (
                name,
                {each.name: each for each in own_source.taken_by(self.text, name)},
            )
            self.takes = tuple(self._signature)
        else:
            self._read_function(what, name)
        self.free = _texts(options.get("numbers"))
        for number in self.free:
            if number not in self.takes:
                raise InputError(
                    f"numbers= names arguments ({', '.join(self.takes)}), got {number!r}; correct it"
                )
        read_shapes(options.get("shapes") or {}, self.takes)
        self._rules = _texts(options.get("restrictions"))
        self._check_used()

    def _read_function(self, function: Any, name: str) -> None:
        inner, _ = own_source.unwrapped(function)
        if not callable(inner):
            raise InputError(
                "what is tuned is a problem in words, a file, CUDA text or a function, got "
                f"{type(function).__name__}"
            )
        self.text, self.target, self.function = "", "cpu", function
        self.name = name or inner.__name__
        signature = inspect.signature(inner).parameters
        self.takes = tuple(argument for argument in signature if argument not in self.parameters)
        for parameter, values in self.parameters.items():
            if parameter in signature and signature[parameter].default in values:
                self._defaults[parameter] = signature[parameter].default

    def _check_used(self) -> None:
        """Refuses parameters that nothing uses: each of their values would be tried in vain."""
        source = self.text or self._module(self.name, {}).text
        beside = (self.options.get(name) for name in ("restrictions", *LAUNCH, *GRID_DIVISORS))
        words = set(re.findall(r"\w+", " ".join([source, *map(str, beside)])))
        for name in self.parameters:
            if name not in words | {THREADS, *BLOCK_SIZES}:
                capitals = sorted(word for word in words if word.isupper())
                raise InputError(
                    f"neither {self.name} nor its launch uses the parameter {name!r}, but "
                    f"{', '.join(capitals) or 'none'}; correct its name, or leave it out"
                )

    def bound(self, arguments: object) -> dict[str, Any]:
        """Arguments by name, given in order, by name, or as one alone."""
        if isinstance(arguments, Mapping):
            return self.named(**arguments)
        return self.named(*(arguments if isinstance(arguments, Sequence) else (arguments,)))

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
        outputs = self._outputs(list(values))
        arrays = [argument.name for argument in given if argument.shape is not None]
        for name in outputs:
            if name not in arrays:
                raise InputError(f"outputs= names arrays ({', '.join(arrays)}), got {name!r}; correct it")
        if not outputs:
            raise InputError(
                f"a kernel writes an array, and nothing tells which of {', '.join(arrays) or 'none'}; name it "
                "by outputs="
            )
        given = [replace(argument, output=argument.name in outputs) for argument in given]
        options, has_launch = self.options, source_language(self.target).has_launch
        own = OwnKernel(
            self.name, self.target, self._source(given), tuple(given),
            shapes_of(given, options.get("shapes") or {}, self.free, tie), self.parameters, rules=self._rules,
            terms=str(options.get("terms", 1)), flops=str(options.get("flops", 0)),
            defaults={**self._defaults, **(options.get("defaults") or {})},
            threads=THREADS if not has_launch and THREADS in self.parameters else "",
        )  # fmt: skip
        own = self._with_reference(own, values)
        return replace(own, launch=self._launch(own.sizes.sizes)) if has_launch else own

    def _outputs(self, names: Sequence[str]) -> tuple[str, ...]:
        """Names of the arrays that the kernel writes."""
        told = _texts(self.options.get("outputs")) or tuple(_answers(self.options.get("answer"), names, ()))
        if told:
            return told
        if self.text:
            return tuple(name for name, argument in self._signature.items() if argument.output)
        # Arguments to whose elements a function assigns.
        written = set()
        for node in ast.walk(own_source.definition(own_source.unwrapped(self.function)[0])):
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                array = node.value
                while isinstance(array, ast.Subscript):
                    array = array.value
                written.add(getattr(array, "id", ""))
        return tuple(name for name in self.takes if name in written)

    def _source(self, given: Sequence[KernelArgument]) -> str:
        """The source as a file of its own, whose function takes arrays before numbers."""
        if self.text:
            return own_source.callable_from_c(self.text, self.name)
        order = [argument.name for argument in sorted(given, key=lambda argument: argument.shape is None)]
        plain = order == list(self.takes) and THREADS not in self.parameters
        _, options = own_source.unwrapped(self.function)
        module = self._module(self.name if plain else f"_{self.name}", options or {})
        module.lines.insert(0, "import numba")
        return module.text if plain else module.text + self._entry(order)

    def _module(self, name: str, options: Mapping[str, Any], itself: bool = False) -> own_source.Module:
        """The function without its parameters, under a name, with all that it uses.

        Args:
            name: Its name.
            options: Numba's.
            itself: True for what the kernel is held against: neither parallel nor cached.
        """
        inner, _ = own_source.unwrapped(self.function)
        node = own_source.definition(inner)
        arguments = (*node.args.posonlyargs, *node.args.args)
        kept = [ast.arg(argument.arg) for argument in arguments if argument.arg not in self.parameters]
        node.name, node.args, node.returns = name, ast.arguments([], kept, None, [], [], None, []), None
        node.decorator_list = []
        if itself:
            decorator = own_source.njit(options).replace("cache=True", "cache=False")
        else:
            names = {getattr(part, "id", getattr(part, "attr", "")) for part in ast.walk(node)}
            options = {"nogil": True, "parallel": "prange" in names, **options}
            decorator = own_source.njit(options)
            if THREADS in self.parameters and options["parallel"]:
                decorator = decorator.replace("parallel=True", f"parallel={THREADS} > 1")
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

    def _with_reference(self, own: OwnKernel, values: Mapping[str, Any]) -> OwnKernel:
        """The declaration with what is right, the library, and the author's own numbers where needed."""
        options = self.options
        mode, reference, answer = (
            options.get("inputs") or "drawn",
            options.get("reference"),
            options.get("answer"),
        )
        if mode not in INPUTS:
            raise UnknownName("way to draw inputs", mode, INPUTS)
        if reference is None and answer is None and self.function is None:
            raise InputError(
                "each config is compared with what is right, and nothing tells that; give reference=, a "
                "function of NumPy arrays, or answer=, an array"
            )
        if reference is None and answer is not None:
            answers, mode = _answers(answer, list(values), own.outputs), "given"
            own = replace(own, arrays={f"answer:{name}": array for name, array in answers.items()})
        else:
            right = self._itself() if reference is None else _reference(own, reference, "its_reference")
            own = replace(own, reference=right, library=self._library(own))
        # All of the author's numbers are kept, or those that chance could not replace, such as indices.
        kept = {
            tensor.name: on_host(values[tensor.name])
            for tensor in own.tensors
            if not tensor.output and (mode != "drawn" or not tensor.dtype.startswith("float"))
        }
        return replace(own, inputs=mode, arrays={**own.arrays, **kept})

    def _itself(self) -> Reference:
        """The function at its first config, in float64: what it computes must not depend on its parameters."""
        defaults = {**self._defaults, **(self.options.get("defaults") or {})}
        first = {name: defaults.get(name, values[0]) for name, values in self.parameters.items()}
        _, options = own_source.unwrapped(self.function)
        fast = {name: value for name, value in (options or {}).items() if name not in ("parallel", "fastmath")}
        module = self._module("its_own_result", fast, itself=True)
        lines = ["import numba", *(f"{name} = {value!r}" for name, value in first.items()), module.text]
        return Reference("\n".join(lines), "its_own_result", self.takes, writes=True)

    def _library(self, own: OwnKernel) -> Reference | None:
        """What is timed beside the kernel; None for nothing."""
        library, reference = self.options.get("library", "reference"), self.options.get("reference")
        title = getattr(library, "__name__", "library")
        if library == "reference" and reference is not None and kind_of(self.target).is_host:
            library, title = reference, "NumPy" if own_source.unwrapped(reference)[1] is None else "reference"
        return replace(_reference(own, library, "its_library"), title=title) if callable(library) else None

    def _launch(self, sizes: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
        """Grid, block and shared memory as expressions; by Kernel Tuner's names where nothing else is said.

        Raises:
            InputError: Nothing tells the block or the grid.
        """
        launch = {name: _texts(self.options[name]) for name in LAUNCH if self.options.get(name) is not None}
        block = launch.setdefault("block", tuple(name for name in BLOCK_SIZES if name in self.parameters))
        if not block:
            raise InputError(
                f"a block has a size, got no block= and no parameter named {BLOCK_SIZES[0]}; give e.g. "
                'block="BLOCK"'
            )
        if "grid" in launch:
            return launch
        if self.options.get("problem_size") is None:
            raise InputError(
                'a launch has a grid, got neither grid= nor problem_size=; give e.g. grid="ceil_div(n, BLOCK)"'
            )
        grid, by_size = [], {str(value): name for name, value in sizes.items()}
        extents = _texts(self.options["problem_size"])
        for extent, block_size, divisor in zip(extents, BLOCK_SIZES, GRID_DIVISORS, strict=False):
            usual = block_size if block_size in self.parameters else None
            divisors = _texts(self.options.get(divisor, usual))
            product = " * ".join(f"({text})" for text in divisors) or "1"
            alone = list(sizes.values()).count(int(extent)) == 1 if extent.isdecimal() else False
            grid.append(f"ceil_div({by_size[extent] if alone else extent}, {product})")
        return launch | {"grid": tuple(grid)}


def _parameters(params: object) -> dict[str, tuple[Any, ...]]:
    if isinstance(params, Sequence) and all(isinstance(choice, Parameter) for choice in params):
        params = {choice.name: choice.values for choice in params}
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
    number = isinstance(value, bool | int | float | numpy.generic)
    kind = numpy.asarray(value).dtype.kind if number else ""
    if not (kind in _KINDS if number else is_array(value)):
        raise InputError(
            "an argument is an array (NumPy, CuPy, PyTorch, or one that speaks DLPack) or a number, "
            f"{name} is {type(value).__name__}; pass one of these"
        )
    wanted = taken.dtype if taken is not None else ""
    if taken is not None and (taken.shape is None) != number:
        thing = "a number" if taken.shape is None else "an array"
        raise InputError(f"{name} is {thing} in the source, and another thing was passed; pass {thing}")
    if number:
        plain = value.item() if isinstance(value, numpy.generic) else value
        if kind == "f" and wanted.startswith("int"):
            raise InputError(f"{name} is a whole number in the source, got {plain}; pass one")
        dtype, shape = wanted or (str(value.dtype) if isinstance(value, numpy.floating) else _KINDS[kind]), None
    else:
        operand, plain = operand_of(value), 0
        dtype, shape = operand.dtype, tuple(map(int, operand.shape))
    if dtype not in DTYPE_BYTES:
        raise InputError(f"an argument is of {', '.join(DTYPE_BYTES)}, {name} is {dtype}; convert it")
    if wanted not in ("", dtype):
        raise InputError(f"{name} is {wanted} in the source, got an array of {dtype}; convert one of them")
    return KernelArgument(name, dtype, shape, float(plain) if kind == "f" else int(plain))


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


def _answers(answer: Any, names: Sequence[str], outputs: Sequence[str]) -> dict[str, Any]:
    """Output -> its right numbers; names alone count where outputs are not known yet."""
    if isinstance(answer, Mapping):
        answers = dict(answer)
    elif isinstance(answer, list | tuple) and len(answer) == len(names):
        answers = {name: array for name, array in zip(names, answer, strict=True) if array is not None}
    elif answer is None or not outputs:
        return {}
    elif len(outputs) == 1:
        answers = {outputs[0]: answer}
    else:
        raise InputError(f"answer= has an array for each of {', '.join(outputs)}; give them by name")
    return {name: on_host(array).astype("float64") for name, array in answers.items()}


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
    every = {argument.name for argument in own.arguments}
    inputs = [tensor.name for tensor in own.tensors if not tensor.output]
    try:
        signature = inspect.signature(own_source.unwrapped(function)[0])
    except (TypeError, ValueError):
        return tuple(inputs)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, _POSITIONAL)
    positional = [one for one in signature.parameters.values() if one.kind in kinds]
    names = [one.name for one in positional if one.name in every or one.default is one.empty]
    if names and set(names) <= every:
        return tuple(names)
    for given in (inputs, [*inputs, *(scalar.name for scalar in own.scalars)]):
        with contextlib.suppress(TypeError):
            signature.bind(*given)
            return tuple(given)
    wants = ", ".join(one.name for one in positional)
    raise InputError(
        f"a reference takes the kernel's inputs ({', '.join(inputs)}), maybe its numbers, by their names or in "
        f"this order; {getattr(function, '__name__', function)} takes {wants}"
    )
