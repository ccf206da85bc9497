"""Writes the declaration of a kernel that was given as text or as a function, for workers to load.

What is written is a file of declarations like any other: it can be read, kept, edited and given to ``tuner
tune``. Its folder is named by what is in it, so that the same kernel has the same file, and a study goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.declare.language import source_language
from tuner.declare.shapes import Given, Shapes, as_python

#: The first lines of a file.
HEAD = '''"""{name}: declared by a call of tile-tuner from Python.

A copy of this folder is a kernel file of your own: edit it, and tune it by `tuner tune {name}.py`.
"""

from pathlib import Path

import numpy

from tuner import Baseline, Constraint, Kernel, Launch, Operation, Scalar, Step, Tensor, Work, ceil_div, choice
'''
#: What is right, from ``computed``.
IN_FLOAT64 = '''
def reference(xp, p, arrays):
    """In float64, on the host."""
    host = {each.name: numpy.zeros(each.shape, each.dtype) for each in p.outputs}
    for each in p.inputs:
        host[each.name] = arrays[each.name] if xp is numpy else xp.asnumpy(arrays[each.name])
    for name, array in host.items():
        host[name] = array.astype("float64") if array.dtype.kind == "f" else array
    return {name: xp.asarray(each, dtype="float64") for name, each in computed(p, host).items()}
'''
#: What is timed beside the kernel, from ``by_the_library``.
LIBRARY = """
def library(xp, p, arrays):
    for name, each in by_the_library(p, arrays).items():
        if each is not arrays[name]:
            arrays[name][...] = each
"""


@dataclass(frozen=True)
class Reference:
    """What is right.

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
class Own:
    """A kernel of an author's own, as all that a declaration says.

    Attributes:
        name: Of operation, kernel and function.
        target: ``cuda`` or ``cpu``.
        source: The kernel's source, complete.
        arguments: What the function takes, in its order.
        shapes: Sizes and shapes.
        parameters: The tunable choices.
        rules: Restrictions as expressions.
        reference: What is right.
        launch: ``grid``, ``block``, ``shared_bytes`` of a CUDA kernel -> expressions.
        more: ``terms`` and ``flops`` as expressions, ``defaults``, ``threads``, and ``library``: name and code
            of what is timed beside the kernel.
        inputs: How inputs are drawn: ``drawn``, ``resampled`` or ``given``.
        arrays: The author's own arrays where these are kept, by name; ``answer:NAME`` for answers.
    """

    name: str
    target: str
    source: str
    arguments: tuple[Given, ...]
    shapes: Shapes
    parameters: Mapping[str, tuple[Any, ...]]
    rules: tuple[str, ...] = ()
    reference: Reference = Reference()
    launch: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    inputs: str = "drawn"
    arrays: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tensors(self) -> tuple[Given, ...]:
        """The arrays."""
        return tuple(each for each in self.arguments if each.shape is not None)

    @property
    def scalars(self) -> tuple[Given, ...]:
        """The numbers."""
        return tuple(each for each in self.arguments if each.shape is None)

    @property
    def dtype(self) -> str:
        """The dtype that names the problem: that of the first floating-point output, or of the first array."""
        floats = [each.dtype for each in self.tensors if each.output and each.dtype.startswith("float")]
        return (floats or [each.dtype for each in self.tensors])[0]

    @property
    def checked_by(self) -> str:
        """A name for what configs are compared with.

        A config that agrees with one reference is not known to agree with another, so that it is checked again.
        """
        told = [
            self.reference.module,
            self.reference.name,
            *self.reference.takes,
            str(self.more.get("terms", 1)),
        ]
        digest = hashlib.sha256("\0".join(told).encode())
        for name, array in sorted(self.arrays.items()):
            if name.startswith("answer:"):
                digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
        return digest.hexdigest()[:16]

    @property
    def fixed(self) -> bool:
        """True if the answer is known for the author's own inputs alone."""
        return not self.reference.name


def write(own: Own, root: Path) -> Path:
    """Writes a declaration below a folder, unless it is there.

    Returns:
        The file of declarations.
    """
    suffix = source_language(own.target).suffix
    texts = {f"{own.name}{suffix}": own.source, f"{own.name}.py": "\n".join(_lines(own, suffix)) + "\n"}
    digest = hashlib.sha256(json.dumps(texts, sort_keys=True).encode())
    for name, array in sorted(own.arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    folder = root / f"{own.name}-{digest.hexdigest()[:16]}"
    if not (folder / f"{own.name}.py").is_file():
        _make(folder, texts, own.arrays)
    return folder / f"{own.name}.py"


def _make(folder: Path, texts: Mapping[str, str], arrays: Mapping[str, Any]) -> None:
    """Writes files beside, then renames their folder: another process may do the same."""
    import numpy

    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".new-"))
    beside.chmod(0o755)
    for name, text in texts.items():
        (beside / name).write_text(text, encoding="utf-8")
    for name, array in arrays.items():
        numpy.save(beside / f"{name.replace(':', '_')}.npy", array)
    try:
        os.rename(beside, folder)  # noqa: PTH104 - fails where the other process was first
    except OSError:
        for path in beside.iterdir():
            path.unlink()
        beside.rmdir()


def _lines(own: Own, suffix: str) -> Iterator[str]:
    yield HEAD.format(name=own.name)
    library = own.more.get("library")
    for each in (own.reference, *([library[1]] if library else [])):
        yield each.module
    yield from _problem(own)
    yield from _reference(own)
    yield from _draws(own)
    yield from _operation(own)
    yield from _kernel(own, suffix)


def _sizes(own: Own) -> str:
    """The line that gives the dims their names."""
    names = ", ".join(own.shapes.sizes)
    told = ", ".join(f"p.dims[{name!r}]" for name in own.shapes.sizes)
    return f"    {names} = {told}"


def _over_sizes(own: Own, text: object, what: str) -> str:
    return as_python(str(text), {name: name for name in own.shapes.sizes}, what)


def _problem(own: Own) -> Iterator[str]:
    """Functions ``tensors``, ``scalars`` and ``work``."""
    yield f"\ndef tensors(p):\n{_sizes(own)}\n    return ("
    for each in own.tensors:
        extents = [_over_sizes(own, text, f"the shape of {each.name}") for text in own.shapes.of[each.name]]
        shape = "".join(f"{text}, " for text in extents)
        output = ", output=True" if each.output else ""
        yield f"        Tensor({each.name!r}, ({shape.rstrip()}), {each.dtype!r}{output}),"
    yield f"    )\n\n\ndef scalars(p):\n{_sizes(own)}\n    return ("
    for each in own.scalars:
        value = each.name if each.name in own.shapes.sizes else repr(each.value)
        yield f"        Scalar({each.name!r}, {each.dtype!r}, {value}),"
    flops = _over_sizes(own, own.more.get("flops", 0), "flops=")
    yield f"    )\n\n\ndef work(p):\n{_sizes(own)}"
    yield f"    return Work(flops=float({flops}), bytes=float(sum(each.bytes for each in p.tensors)))\n"


def _reference(own: Own) -> Iterator[str]:
    """Functions ``reference`` and ``library``."""
    outputs = [each.name for each in own.tensors if each.output]
    if own.fixed:
        yield "\ndef reference(xp, p, arrays):\n    folder = Path(__file__).parent"
        told = ", ".join(f"{name!r}: numpy.load(folder / 'answer_{name}.npy')" for name in outputs)
        yield f"    return {{name: xp.asarray(each, dtype='float64') for name, each in {{{told}}}.items()}}\n"
        return
    yield from _computed(own, own.reference, "computed", outputs)
    yield IN_FLOAT64
    if own.more.get("library"):
        yield from _computed(own, own.more["library"][1], "by_the_library", outputs)
        yield LIBRARY


def _computed(own: Own, code: Reference, name: str, outputs: Sequence[str]) -> Iterator[str]:
    """A function of the problem and its arrays that returns outputs by name."""
    values = {each.name: each for each in own.scalars}
    yield f"\ndef {name}(p, arrays):\n{_sizes(own)}"
    arguments = []
    for each in code.takes:
        if each not in values:
            arguments.append(f"arrays[{each!r}]")
        else:
            arguments.append(each if each in own.shapes.sizes else repr(values[each].value))
    called = f"{code.name}({', '.join(arguments)})"
    if code.writes:
        yield f"    {called}\n    return {{name: arrays[name] for name in {tuple(outputs)!r}}}\n"
        return
    yield f"    found = {called}"
    yield "    if isinstance(found, dict):\n        return found"
    yield "    several = found if isinstance(found, tuple) else (found,)"
    yield f"    return dict(zip({tuple(outputs)!r}, several, strict=True))\n"


def _draws(own: Own) -> Iterator[str]:
    """Function ``draws``, where inputs are not simply drawn."""
    kept = [name for name in own.arrays if ":" not in name]
    if not kept:
        return
    yield "\ndef draws(p, tensor, generator, count):"
    yield f"    if tensor.name not in {tuple(kept)!r}:\n        return None"
    yield "    own = numpy.load(Path(__file__).parent / f'{tensor.name}.npy').reshape(-1)"
    if own.inputs == "given":
        yield "    return numpy.resize(own, count)\n"
    else:
        yield "    return generator.choice(own, count)\n"


def _operation(own: Own) -> Iterator[str]:
    over_problem = {name: f"p.dims[{name!r}]" for name in own.shapes.sizes}
    terms = as_python(str(own.more.get("terms", 1)), over_problem, "terms=")
    yield "\nOPERATION = Operation("
    yield f"    name={own.name!r},\n    dims={tuple(own.shapes.sizes)!r},\n    dtypes=({own.dtype!r},),"
    yield "    tensors=tensors,\n    scalars=scalars,\n    work=work,\n    reference=reference,"
    yield f"    terms=lambda p: {terms},"
    yield f"    constants=lambda p, target: {{'CHECKED_BY': {own.checked_by!r}}},"
    if any(":" not in name for name in own.arrays):
        yield f"    draws=draws,\n    fixed={own.fixed!r},"
    if own.more.get("library"):
        yield f"    baselines={{{own.target!r}: Baseline({own.more['library'][0]!r}, library)}},"
    yield ")\n"


def _kernel(own: Own, suffix: str) -> Iterator[str]:
    yield "KERNEL = Kernel("
    yield f"    operation={own.name!r},\n    name={own.name!r},\n    target={own.target!r},"
    yield f"    source=Path({own.name + suffix!r}),\n    parameters=("
    for name, values in own.parameters.items():
        yield f"        choice({name!r}, {', '.join(map(repr, values))}),"
    yield "    ),\n    constraints=("
    for sentence, rule in _rules(own):
        yield f"        Constraint({sentence!r}, lambda p, d, c: {rule}),"
    yield "    ),"
    if source_language(own.target).has_launch:
        yield f"    launch=lambda p, c: {_launch(own)},"
    if own.more.get("threads"):
        yield f"    threads={own.more['threads']!r},"
    if own.more.get("defaults"):
        yield f"    defaults={dict(own.more['defaults'])!r},"
    yield ")"


def _names(own: Own) -> dict[str, str]:
    """What restrictions and launches may name: sizes and parameters."""
    sizes = {name: f"p.dims[{name!r}]" for name in own.shapes.sizes}
    return sizes | {name: f"c.{name}" for name in own.parameters}


def _rules(own: Own) -> Iterator[tuple[str, str]]:
    names = _names(own)
    for text in own.rules:
        yield text, as_python(text, names, "a restriction")
    if source_language(own.target).has_launch:
        block = " * ".join(f"({as_python(each, names, 'block=')})" for each in own.launch["block"])
        yield "a block has no more threads than the device allows", f"{block} <= d.max_threads_per_block"
        for text in own.launch.get("shared_bytes", ()):
            shared = as_python(text, names, "shared_bytes=")
            yield (
                "a block has no more shared memory than the device allows",
                f"{shared} <= d.shared_bytes_per_block",
            )
    if own.more.get("threads"):
        yield "no more threads than cores", f"c.{own.more['threads']} <= max(d.cores, 1)"
    if own.arrays:
        same = " & ".join(f"(p.dims[{name!r}] == {size})" for name, size in own.shapes.sizes.items())
        yield "the sizes are those that numbers were given for", same


def _launch(own: Own) -> str:
    names = _names(own)
    parts = {
        part: "".join(f"int({as_python(each, names, f'{part}=')}), " for each in own.launch[part])
        for part in ("grid", "block")
    }
    shared = as_python((*own.launch.get("shared_bytes", ()), "0")[0], names, "shared_bytes=")
    geometry = f"({parts['grid']}), ({parts['block']}), int({shared})"
    order = tuple(each.name for each in own.arguments)
    if order == tuple(each.name for each in (*own.tensors, *own.scalars)):
        return f"Launch({geometry})"
    return f"Launch.of({own.name!r}, [Step({own.name!r}, {geometry}, {order!r})])"
