"""Kernels of a user's own: what a call of `tuner.tune` says of one, written as a file of declarations.

Workers load that file as any other: it can be read, kept, edited and given to ``tuner tune``. Beside it lies
the kernel's source. The folder is named by what its files are made of, so that the same kernel has the same
file, and a study goes on.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy

from tuner.declare.folders import filled
from tuner.declare.language import source_language
from tuner.declare.problem import Problem, Tensor
from tuner.declare.shapes import KernelArgument, Sizes, spelt
from tuner.declare.space import Config, Constraint

_TEMPLATE = Path(__file__).with_suffix(".py.jinja")
#: What limits a block or threads: how messages, expressions and a file of declarations say it.
_LIMITS = {name: f"d.{name}" for name in ("max_threads_per_block", "shared_bytes_per_block", "cores")}


@dataclass(frozen=True)
class Reference:
    """A function that computes the outputs: what is right, or what is timed beside the kernel.

    Attributes:
        module: Source that defines `name`.
        name: Function that gives the outputs, or writes them.
        takes: Arguments of the kernel that it takes, in order; those that are outputs are for it to write.
        writes: True if it writes outputs, False if it returns them.
        title: Its name for people.
    """

    module: str
    name: str
    takes: tuple[str, ...]
    writes: bool = False
    title: str = ""

    @property
    def call(self) -> str:
        """What makes the operation's reference of it."""
        return f"tuner.declare.own.right({self.name}, {self.takes}, writes={self.writes})"


@dataclass(frozen=True)
class OwnKernel:
    """A kernel of an author's own, as all that a declaration says. Sizes in texts are expressions.

    Attributes:
        name: Of operation, kernel and function.
        target: ``cuda`` or ``cpu``.
        source: The kernel's source, complete.
        arguments: What the function takes, in its order.
        sizes: What names the problem.
        parameters: The tunable choices.
        reference: What is right; None where `arrays` have the answer.
        library: What is timed beside the kernel; None for nothing.
        rules: Restrictions.
        launch: ``grid``, ``block``, ``shared_bytes`` of a CUDA kernel.
        terms: Products that are summed into an element.
        flops: Floating-point operations of a run.
        defaults: Values to try first.
        threads: The parameter that is the number of CPU threads; empty if there is none.
        inputs: How inputs are drawn: ``drawn``, ``resampled`` or ``given``.
        arrays: The author's own arrays where these are kept, by name; ``answer:NAME`` for answers.
    """

    name: str
    target: str
    source: str
    arguments: tuple[KernelArgument, ...]
    sizes: Sizes
    parameters: Mapping[str, tuple[Any, ...]]
    reference: Reference | None = None
    library: Reference | None = None
    rules: tuple[str, ...] = ()
    launch: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    terms: str = "1"
    flops: str = "0"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    threads: str = ""
    inputs: str = "drawn"
    arrays: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tensors(self) -> tuple[KernelArgument, ...]:
        """The arrays."""
        return tuple(argument for argument in self.arguments if argument.shape is not None)

    @property
    def scalars(self) -> tuple[KernelArgument, ...]:
        """The numbers."""
        return tuple(argument for argument in self.arguments if argument.shape is None)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the arrays that the kernel writes."""
        return tuple(tensor.name for tensor in self.tensors if tensor.output)

    @property
    def dtype(self) -> str:
        """The dtype that names the problem: that of the first floating-point output, or of the first array."""
        floats = [tensor.dtype for tensor in self.tensors if tensor.output and tensor.dtype.startswith("float")]
        return (floats or [self.tensors[0].dtype])[0]

    @property
    def checked_by(self) -> str:
        """Names what configs are compared with: one that agrees with one reference may differ from another."""
        right = self.reference or Reference("", "", ())
        text = "\0".join([right.module, right.name, *right.takes, self.terms])
        return _digest(text, {name: array for name, array in self.arrays.items() if name.startswith("answer:")})

    @property
    def kind(self) -> str:
        """Name of the kind of device that it runs on."""
        return source_language(self.target).kind

    @property
    def source_file(self) -> str:
        """Name of the source's file."""
        return self.name + source_language(self.target).suffix

    def text(self) -> str:
        """The file of declarations.

        Raises:
            DeclarationError: An expression cannot be read.
        """
        dims = {name: f"p.dims[{name!r}]" for name in self.sizes.sizes}
        dims |= {name: dims[dim] for name, dim in self.sizes.tied.items()}
        names = dims | {name: f"c[{name!r}]" for name in self.parameters}
        launch = {
            part: _listed(spelt(text, names, f"{part}=") for text in texts)
            for part, texts in self.launch.items()
        }
        return filled(
            _TEMPLATE,
            {"tuple": tuple},
            own=self,
            references=[code for code in (self.reference, self.library) if code is not None],
            scalars={scalar.name: repr(scalar.value) for scalar in self.scalars} | dims,
            shapes={
                name: _listed(spelt(extent, dims, f"the shape of {name}") for extent in extents)
                for name, extents in self.sizes.shapes.items()
            },
            flops=spelt(self.flops, dims, "flops="),
            terms=spelt(self.terms, dims, "terms="),
            inputs=[name for name in self.arrays if ":" not in name],
            rules=self._rules(names),
            launch={"shared_bytes": "()", **launch} if launch else {},
            order=tuple(argument.name for argument in self.arguments),
            in_order=tuple(argument.name for argument in (*self.tensors, *self.scalars)),
            starts={name: values[0] for name, values in self.parameters.items()} | dict(self.defaults),
        )

    def _rules(self, names: Mapping[str, str]) -> list[tuple[str, str, list[str]]]:
        """Sentence, expression and the parameters that it reads."""
        limits = {
            "a block has no more threads than the device allows": (
                " * ".join(f"({text})" for text in self.launch.get("block", ())), "max_threads_per_block",
            ),
            "a block has no more shared memory than the device allows": (
                "".join(self.launch.get("shared_bytes", ())), "shared_bytes_per_block",
            ),
            "no more threads than cores": (self.threads, "max(cores, 1)"),
        }  # fmt: skip
        rules = {text: spelt(text, names, "a restriction") for text in self.rules}
        rules |= {
            sentence: spelt(f"{size} <= {limit}", {**names, **_LIMITS}, "a size of a launch")
            for sentence, (size, limit) in limits.items()
            if size
        }
        if self.arrays:
            rules["the sizes are those that numbers were given for"] = f"p.dims == {self.sizes.sizes}"
        read = [
            [name for name in self.parameters if re.search(rf"\b{name}\b", rule)] for rule in rules.values()
        ]
        return list(zip(rules, rules.values(), read, strict=True))

    def write(self, root: Path) -> Path:
        """Writes the declaration below a folder, unless it is there.

        Returns:
            The file of declarations.

        Raises:
            DeclarationError: An expression cannot be read.
        """
        # To fill the template takes half of a first answer's time.
        made_of = [repr(replace(self, arrays={})), *(file.read_text() for file in (_TEMPLATE, Path(__file__)))]
        folder = root / f"{self.name}-{_digest(json.dumps(made_of), self.arrays)}"
        if not (folder / f"{self.name}.py").is_file():
            _make(folder, {self.source_file: self.source, f"{self.name}.py": self.text()}, self.arrays)
        return folder / f"{self.name}.py"


def _listed(parts: Iterable[str]) -> str:
    """A tuple of expressions."""
    return f"({''.join(f'{part}, ' for part in parts).rstrip()})"


def _digest(text: str, arrays: Mapping[str, Any]) -> str:
    """Names a text and some arrays."""
    digest = hashlib.sha256(text.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()[:16]


def _make(folder: Path, texts: Mapping[str, str], arrays: Mapping[str, Any]) -> None:
    """Writes files beside, then renames their folder: another process may do the same."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".new-"))
    beside.chmod(0o755)
    for name, text in texts.items():
        (beside / name).write_text(text, encoding="utf-8")
    for name, array in arrays.items():
        numpy.save(beside / _array_file(name), array)
    try:
        os.rename(beside, folder)  # noqa: PTH104 - fails where the other process was first
    except OSError:
        shutil.rmtree(beside)


def _array_file(name: str) -> str:
    return f"{name.replace(':', '_')}.npy"


# --- What such files call -----------------------------------------------------------------------------------


def rule(sentence: str, holds: Callable[[Any, Any, Any], Any], reads: list[str]) -> Constraint:
    """A constraint that Python evaluates config by config, so that it may be written in any way.

    Args:
        sentence: The rule in words.
        holds: ``(problem, device, config)`` -> bool.
        reads: The parameters that it reads.
    """

    def check(p: Any, d: Any, c: Any) -> Any:
        values = [c[name] for name in reads]
        if not any(isinstance(value, numpy.ndarray) for value in values):
            return holds(p, d, c)
        one = numpy.frompyfunc(
            lambda *row: bool(holds(p, d, Config(dict(zip(reads, row, strict=True))))), len(reads), 1
        )
        return one(*values).astype(bool)

    return Constraint(sentence, check)


def _computed(
    function: Callable[..., Any], takes: tuple[str, ...], writes: bool, p: Problem, arrays: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Outputs by name."""
    values = {scalar.name: scalar.value for scalar in p.scalars} | dict(arrays)
    result = function(*(values[name] for name in takes))
    names = [tensor.name for tensor in p.outputs]
    if writes:
        return {name: arrays[name] for name in names}
    if isinstance(result, dict):
        return result
    return dict(zip(names, result if isinstance(result, tuple) else (result,), strict=True))


def right(function: Callable[..., Any], takes: tuple[str, ...], writes: bool) -> Callable[..., Any]:
    """A reference by a function of NumPy arrays, whose numbers are float64."""

    def reference(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> dict[str, Any]:
        host = {tensor.name: numpy.zeros(tensor.shape, tensor.dtype) for tensor in p.outputs}
        for tensor in p.inputs:
            host[tensor.name] = arrays[tensor.name] if xp is numpy else xp.asnumpy(arrays[tensor.name])
        host = {name: a.astype("float64") if a.dtype.kind == "f" else a for name, a in host.items()}
        results = _computed(function, takes, writes, p, host)
        return {name: xp.asarray(result, dtype="float64") for name, result in results.items()}

    return reference


def answer(file: str) -> Callable[..., Any]:
    """A reference that was given as arrays, which lie beside the file."""
    return lambda xp, p, arrays: {
        tensor.name: xp.asarray(_loaded(file, f"answer:{tensor.name}"), dtype="float64") for tensor in p.outputs
    }


def _loaded(file: str, name: str) -> Any:
    return numpy.load(Path(file).parent / _array_file(name))


def drawn(file: str, names: list[str], given: bool) -> Callable[..., Any]:
    """Inputs from arrays beside the file: as they are, or drawn from their numbers."""

    def draws(p: Problem, tensor: Tensor, generator: Any, count: int) -> Any:
        if tensor.name not in names:
            return None
        numbers = _loaded(file, tensor.name).reshape(-1)
        return numpy.resize(numbers, count) if given else generator.choice(numbers, count)

    return draws


def timed(function: Callable[..., Any], takes: tuple[str, ...], writes: bool) -> Callable[..., None]:
    """What is timed beside the kernel, on its own arrays."""

    def library(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> None:
        for name, result in _computed(function, takes, writes, p, arrays).items():
            if result is not arrays[name]:
                arrays[name][...] = result

    return library
