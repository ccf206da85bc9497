"""Kernels of a user's own: what a call of `tuner.tune` says of one, kept as a file of declarations.

Workers load that file as any other: it can be read, kept, edited and given to ``tuner tune``. Beside it lie the
kernel's source and a JSON file with the data that the operation and the kernel are built from. The folder is
named by what is in it, so that the same kernel has the same file, and a study goes on.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy

from tuner.declare.kernel import Kernel, Source
from tuner.declare.language import source_language
from tuner.declare.launch import Launch, Step
from tuner.declare.problem import Baseline, Operation, Problem, Scalar, Tensor, Work
from tuner.declare.shapes import KernelArgument, expression
from tuner.declare.space import Config, Constraint, choice

#: The file of declarations: what is right as functions, and what builds the rest from the JSON file.
_FILE = '''"""{name}: declared by a call of tile-tuner from Python.

A copy of this folder is a kernel file of your own: edit {name}.json and the source beside it, and tune it by
`tuner tune {name}.py`.
"""

{functions}
import tuner.declare.own

OPERATION, KERNEL = tuner.declare.own.declared(__file__, globals())
'''


@dataclass(frozen=True)
class Reference:
    """A function that computes the outputs: what is right, or what is timed beside the kernel.

    Attributes:
        module: Source that defines `name`; empty where an array is the answer.
        name: Function that gives the outputs, or writes them.
        takes: Arguments of the kernel that it takes, in order; those that are outputs are for it to write.
        writes: True if it writes outputs, False if it returns them.
    """

    module: str = ""
    name: str = ""
    takes: tuple[str, ...] = ()
    writes: bool = False


@dataclass(frozen=True)
class OwnKernel:
    """A kernel of an author's own, as all that a declaration says. Sizes in texts are expressions.

    Attributes:
        name: Of operation, kernel and function.
        target: ``cuda`` or ``cpu``.
        source: The kernel's source, complete.
        arguments: What the function takes, in its order.
        sizes: Dim -> size, in the order in which a problem names them.
        shapes: Array -> its extents over the dims.
        parameters: The tunable choices.
        rules: Restrictions.
        reference: What is right.
        library: What is timed beside the kernel; None for nothing.
        library_name: Its name for people.
        launch: ``grid``, ``block``, ``shared_bytes`` of a CUDA kernel.
        terms: Products that are summed into an element.
        flops: Floating-point operations of a run.
        defaults: Values to try first.
        threads: The parameter that is the number of CPU threads; empty if there is none.
        inputs: How inputs are drawn: ``drawn``, ``resampled`` or ``given``.
        arrays: The author's own arrays where these are kept, by name; ``answer:NAME`` for answers.
        checked_by: Names what configs are compared with. A config that agrees with one reference is not known
            to agree with another, so that it is checked again.
    """

    name: str
    target: str
    source: str
    arguments: tuple[KernelArgument, ...]
    sizes: Mapping[str, int]
    shapes: Mapping[str, tuple[str, ...]]
    parameters: Mapping[str, tuple[Any, ...]]
    rules: tuple[str, ...] = ()
    reference: Reference = Reference()
    library: Reference | None = None
    library_name: str = ""
    launch: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    terms: str = "1"
    flops: str = "0"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    threads: str = ""
    inputs: str = "drawn"
    arrays: Mapping[str, Any] = field(default_factory=dict)
    checked_by: str = ""

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
        return tuple(argument.name for argument in self.tensors if argument.output)

    @property
    def fixed(self) -> bool:
        """True if the answer is known for the author's own inputs alone."""
        return not self.reference.name

    @property
    def dtype(self) -> str:
        """The dtype that names the problem: that of the first floating-point output, or of the first array."""
        floats = [tensor.dtype for tensor in self.tensors if tensor.output and tensor.dtype.startswith("float")]
        return (floats or [self.tensors[0].dtype])[0]

    def to_json(self) -> dict[str, Any]:
        """The data of the declaration, without sources and numbers."""
        data = asdict(replace(self, arrays=dict.fromkeys(self.arrays), checked_by=_checked_by(self)))
        for reference in (data["reference"], data["library"] or {}):
            reference.pop("module", None)
        return {name: value for name, value in data.items() if name != "source"}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> OwnKernel:
        """Reads the output of `to_json`."""
        parts = {
            "arguments": tuple(KernelArgument(**argument) for argument in data["arguments"]),
            "reference": Reference(**data["reference"]),
            "library": Reference(**data["library"]) if data["library"] else None,
        }
        return cls(**{**data, **parts, "source": ""})


def _checked_by(own: OwnKernel) -> str:
    reference = own.reference
    text = "\0".join([reference.module, reference.name, *reference.takes, own.terms])
    return _digest(text, {name: array for name, array in own.arrays.items() if name.startswith("answer:")})


def _digest(text: str, arrays: Mapping[str, Any]) -> str:
    """Names a text and some arrays."""
    digest = hashlib.sha256(text.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()[:16]


def write(own: OwnKernel, root: Path) -> Path:
    """Writes a declaration below a folder, unless it is there.

    Returns:
        The file of declarations.

    Raises:
        DeclarationError: An expression cannot be read.
    """
    _operation(own, root, {}), _kernel(own)
    functions = "\n".join(code.module for code in (own.reference, own.library) if code is not None)
    texts = {
        _source_file(own): own.source,
        f"{own.name}.json": json.dumps(own.to_json(), indent=2, default=lambda value: value.item()) + "\n",
        f"{own.name}.py": _FILE.format(name=own.name, functions=functions),
    }
    folder = root / f"{own.name}-{_digest(json.dumps(texts, sort_keys=True), own.arrays)}"
    if not (folder / f"{own.name}.py").is_file():
        _make(folder, texts, own.arrays)
    return folder / f"{own.name}.py"


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


def _source_file(own: OwnKernel) -> str:
    return own.name + source_language(own.target).suffix


def declared(file: str, functions: Mapping[str, Callable[..., Any]]) -> tuple[Operation, Kernel]:
    """The operation and the kernel that a written file declares.

    Args:
        file: The file; the JSON file and the kernel's source lie beside it.
        functions: What the file defines: the reference and the library by name.

    Raises:
        DeclarationError: An expression cannot be read.
    """
    path = Path(file)
    own = OwnKernel.from_json(json.loads(path.with_suffix(".json").read_text(encoding="utf-8")))
    return _operation(own, path.parent, functions), _kernel(own)


def _operation(own: OwnKernel, folder: Path, functions: Mapping[str, Callable[..., Any]]) -> Operation:
    flops, terms = expression(own.flops, own.sizes, "flops="), expression(own.terms, own.sizes, "terms=")
    shapes = {
        name: [expression(extent, own.sizes, f"the shape of {name}") for extent in extents]
        for name, extents in own.shapes.items()
    }

    keeps_inputs = any(":" not in name for name in own.arrays)

    def tensors(p: Problem) -> tuple[Tensor, ...]:
        return tuple(
            Tensor(
                tensor.name,
                tuple(extent(p.dims) for extent in shapes[tensor.name]),
                tensor.dtype,
                tensor.output,
            )
            for tensor in own.tensors
        )

    def scalars(p: Problem) -> tuple[Scalar, ...]:
        return tuple(
            Scalar(scalar.name, scalar.dtype, p.dims.get(scalar.name, scalar.value)) for scalar in own.scalars
        )

    def computed(code: Reference, p: Problem, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Outputs by name."""
        values = {scalar.name: scalar.value for scalar in own.scalars} | p.dims | dict(arrays)
        result = functions[code.name](*(values[name] for name in code.takes))
        if code.writes:
            return {name: arrays[name] for name in own.outputs}
        if isinstance(result, dict):
            return result
        return dict(zip(own.outputs, result if isinstance(result, tuple) else (result,), strict=True))

    def reference(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """In float64, on the host."""
        if own.fixed:
            answers = {name: numpy.load(folder / _array_file(f"answer:{name}")) for name in own.outputs}
            return {name: xp.asarray(answer, dtype="float64") for name, answer in answers.items()}
        host = {tensor.name: numpy.zeros(tensor.shape, tensor.dtype) for tensor in p.outputs}
        for tensor in p.inputs:
            host[tensor.name] = arrays[tensor.name] if xp is numpy else xp.asnumpy(arrays[tensor.name])
        host = {name: a.astype("float64") if a.dtype.kind == "f" else a for name, a in host.items()}
        results = computed(own.reference, p, host)
        return {name: xp.asarray(result, dtype="float64") for name, result in results.items()}

    def draws(p: Problem, tensor: Tensor, generator: Any, count: int) -> Any:
        if tensor.name not in own.arrays:
            return None
        numbers = numpy.load(folder / _array_file(tensor.name)).reshape(-1)
        return numpy.resize(numbers, count) if own.inputs == "given" else generator.choice(numbers, count)

    def library(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> None:
        assert own.library is not None, "a baseline has a library"
        for name, result in computed(own.library, p, arrays).items():
            if result is not arrays[name]:
                arrays[name][...] = result

    return Operation(
        name=own.name,
        dims=tuple(own.sizes),
        dtypes=(own.dtype,),
        tensors=tensors,
        scalars=scalars,
        work=lambda p: Work(float(flops(p.dims)), float(sum(tensor.bytes for tensor in p.tensors))),
        reference=reference,
        terms=lambda p: terms(p.dims),
        constants=lambda p, target: {"CHECKED_BY": own.checked_by},
        draws=draws if keeps_inputs else None,
        fixed=own.fixed and keeps_inputs,
        baselines={own.target: Baseline(own.library_name, library)} if own.library else {},
    )


def _kernel(own: OwnKernel) -> Kernel:
    names = (*own.sizes, *own.parameters)
    rules = {text: expression(text, names, "a restriction") for text in own.rules}
    constraints = [
        Constraint(text, lambda p, d, c, rule=rule: rule(ChainMap(c, p.dims)))  # type: ignore[misc]
        for text, rule in rules.items()
    ]
    parts = {
        part: [expression(text, names, f"{part}=") for text in texts] for part, texts in own.launch.items()
    }

    def sizes(part: str, p: Problem, c: Any) -> tuple[Any, ...]:
        return tuple(size(ChainMap(c, p.dims)) for size in parts.get(part, ()))

    def threads(p: Problem, c: Any) -> Any:
        return math.prod(sizes("block", p, c))

    def launch(p: Problem, c: Config) -> Launch:
        grid, block, shared = (tuple(map(int, sizes(part, p, c))) for part in ("grid", "block", "shared_bytes"))
        order = tuple(argument.name for argument in own.arguments)
        step = Step(own.name, grid, block, sum(shared), order)
        if order == tuple(argument.name for argument in (*own.tensors, *own.scalars)):
            return Launch(step.grid, step.block, step.shared_bytes)
        return Launch.of(own.name, [step])

    limits: list[tuple[object, str, Callable[[Problem, Any, Any], Any]]] = [
        (own.launch, "a block has no more threads than the device allows",
         lambda p, d, c: threads(p, c) <= d.max_threads_per_block),
        ("shared_bytes" in own.launch, "a block has no more shared memory than the device allows",
         lambda p, d, c: sizes("shared_bytes", p, c)[0] <= d.shared_bytes_per_block),
        (own.threads, "no more threads than cores", lambda p, d, c: c[own.threads] <= max(d.cores, 1)),
        (own.arrays, "the sizes are those that numbers were given for", lambda p, d, c: p.dims == own.sizes),
    ]  # fmt: skip
    constraints += [Constraint(sentence, rule) for applies, sentence, rule in limits if applies]
    first = {name: values[0] for name, values in own.parameters.items()}
    return Kernel(
        operation=own.name,
        name=own.name,
        target=own.target,
        source=Source(Path(_source_file(own))),
        parameters=tuple(choice(name, *values) for name, values in own.parameters.items()),
        constraints=tuple(constraints),
        launch=launch if own.launch else None,
        threads=own.threads,
        starts=({**first, **own.defaults},) if own.defaults else (),
    )
