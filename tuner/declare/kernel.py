"""Declarations of kernels: source, parameters, constraints and launch geometry."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tuner.declare.fallback import ENTRY, Fallback, behind
from tuner.declare.functions import functions_of, names
from tuner.declare.problem import IEEE, PRECISIONS, Problem, Tensor
from tuner.declare.source_text import measured_text
from tuner.declare.space import Config, Constraint, Parameter, Value
from tuner.declare.tensor_map import TensorMap
from tuner.errors import DeclarationError

TARGETS = ("cuda", "cpu")


def ceil_div(numerator: Any, denominator: Any) -> Any:
    """Rounds numerator / denominator up to a whole number; also for arrays."""
    return -(-numerator // denominator)


@dataclass(frozen=True)
class Padded:
    """A tensor that a CUDA kernel takes as a larger array, with zeros beyond the tensor's own elements.

    A run, and its measured time, includes copying an input in before the launch and an output out after it. The
    larger array is allocated once.

    Attributes:
        tensor: Name of a tensor of two dims.
        shape: Rows and columns of the larger array.
    """

    tensor: str
    shape: tuple[int, ...]

    @staticmethod
    def rows_of(tensors: Sequence[Tensor], columns: int, rows: int = 1) -> tuple[Padded, ...]:
        """Pads the tensors of two dims to multiples.

        Args:
            tensors: All tensors of the problem; those without two dims are passed over.
            columns: The length of every row becomes a multiple of this.
            rows: The number of rows becomes a multiple of this.
        """
        units = (rows, columns)
        return tuple(
            Padded(
                each.name,
                tuple(ceil_div(size, unit) * unit for size, unit in zip(each.shape, units, strict=True)),
            )
            for each in tensors
        )


@dataclass(frozen=True)
class Pieces:
    """An input that a CUDA kernel takes in pieces through constant memory, one launch for each piece.

    Before each launch a piece is copied to the source's ``__constant__`` array. The kernel's last argument is
    an ``int``: the number of the tensor's elements before this piece.

    Attributes:
        symbol: Name of the ``__constant__`` array.
        tensor: Name of the input.
        elements: Size of the array; the last piece may have fewer.
    """

    symbol: str
    tensor: str
    elements: int


@dataclass(frozen=True)
class Workspace:
    """Device memory for a CUDA kernel's own use, passed as a pointer after all other arguments.

    Runs that may overlap need one each; runs on one stream never overlap.

    Attributes:
        bytes: Its size; it starts at a multiple of 256.
        zeroed_bytes: This many bytes, from the first on, are zero when the kernel starts. The kernel must leave
            them at zero (for example counters that its last block resets), because nothing writes them between
            runs.
        regions: (name, first byte) of parts that steps are given by name.
    """

    bytes: int
    zeroed_bytes: int = 0
    regions: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Step:
    """One launch of a kernel whose run is several.

    Attributes:
        entry: Function of the source that is launched.
        grid: Blocks in x, y, z.
        block: Threads in x, y, z.
        shared_bytes: Dynamic shared memory of a block, in bytes.
        arguments: What the function takes, in order: names of tensors, of scalars and of the workspace's
            regions; empty for a null pointer.
    """

    entry: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int = 0
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Packing:
    """An input that can be packed once and used by many runs.

    Attributes:
        tensor: Name of the input.
        region: Region of the workspace that its packed form lies in; a run that is given it packed is given
            other memory there.
        bytes: Size of the packed form.
        step: Entry of the step that packs. It packs what it is given, and takes null pointers for all others:
            for the tensor where that is packed already; for other inputs, and their packings' regions, where
            the tensor alone is packed.
        form: What the packed form depends on beside the tensor: runs with the same form may share it.
    """

    tensor: str
    region: str
    bytes: int
    step: str
    form: str = ""


@dataclass(frozen=True)
class Launch:
    """Geometry of a CUDA launch, with its padding, pieces and workspace.

    Attributes:
        grid: Blocks in x, y, z.
        block: Threads in x, y, z.
        shared_bytes: Dynamic shared memory of a block, in bytes.
        padded: Tensors that the kernel takes as larger arrays.
        pieces: The input that passes through constant memory, or None.
        workspace: Device memory for the kernel's own use, or None.
        steps: The launches of a run, in order, if a run is several; each function is given what its step says.
            Grid, block and shared memory above are those of the step that does most of the work.
        counter: Name by which steps are given a 32-bit word to count in, which all runs of the process on a GPU
            share; exported kernels are given a null pointer instead. Empty if none counts.
        packings: Inputs that can be packed beforehand.
        maps: Tensor maps, which steps are given by name.
    """

    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int = 0
    padded: tuple[Padded, ...] = ()
    pieces: Pieces | None = None
    workspace: Workspace | None = None
    steps: tuple[Step, ...] = ()
    counter: str = ""
    packings: tuple[Packing, ...] = ()
    maps: tuple[TensorMap, ...] = ()

    def __post_init__(self) -> None:
        if self.steps and self.pieces:
            raise DeclarationError("a launch has steps or pieces, got both; leave one of them out")
        if self.maps and (not self.steps or self.packings):
            raise DeclarationError(
                "tensor maps are arguments of steps, which pack no operands; declare the run with Launch.of, "
                "even if it is a single step"
            )

    @classmethod
    def of(cls, main: str, steps: Sequence[Step], workspace: Workspace | None = None, **more: Any) -> Launch:
        """A run of several launches.

        Args:
            main: Entry of the step that does most of the work.
            steps: The launches in order.
            workspace: Memory that they share.
            more: Further attributes by name.

        Raises:
            DeclarationError: No step has that entry.
        """
        found = next((step for step in steps if step.entry == main), None)
        if found is None:
            names = ", ".join(step.entry for step in steps)
            raise DeclarationError(f"main= is the entry of a step ({names}), got {main!r}; name one of them")
        return cls(
            found.grid,
            found.block,
            found.shared_bytes,
            workspace=workspace,
            steps=tuple(steps),
            **more,
        )

    def names(self, problem: Problem) -> list[str]:
        """What steps' arguments name, in the order of what a run is given: a null pointer, maps come last."""
        regions = self.workspace.regions if self.workspace else ()
        scalars = (scalar.name for scalar in problem.scalars)
        own = (name for name, _ in regions)
        tensors, maps = (tensor.name for tensor in problem.tensors), (each.name for each in self.maps)
        return [*tensors, *scalars, *own, self.counter or "counter", "", *maps]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Launch:
        """Reads the output of ``dataclasses.asdict``."""
        return cls(
            tuple(data["grid"]),
            tuple(data["block"]),
            data["shared_bytes"],
            tuple(Padded(each["tensor"], tuple(each["shape"])) for each in data.get("padded", ())),
            Pieces(**data["pieces"]) if data.get("pieces") else None,
            _workspace_from(data["workspace"]) if data.get("workspace") else None,
            tuple(_step_from(each) for each in data.get("steps", ())),
            data.get("counter", ""),
            tuple(Packing(**each) for each in data.get("packings", ())),
            tuple(TensorMap.from_json(each) for each in data.get("maps", ())),
        )


def _workspace_from(data: Mapping[str, Any]) -> Workspace:
    regions = tuple((name, first) for name, first in data.get("regions", ()))
    return Workspace(data["bytes"], data["zeroed_bytes"], regions)


def _step_from(data: Mapping[str, Any]) -> Step:
    return Step(
        data["entry"], tuple(data["grid"]), tuple(data["block"]), data["shared_bytes"],
        tuple(data["arguments"]),
    )  # fmt: skip


def _launch_hash(constants: Mapping[str, Any], launch: Launch | None) -> str:
    told = {"constants": dict(constants), "launch": None if launch is None else _given(launch)}
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=_plain).encode()).hexdigest()[:16]


def _given(part: Any) -> Any:
    """Returns a launch, or a part of one, as plain data without the fields that have their default values."""
    if isinstance(part, tuple):
        return [_given(each) for each in part]
    if not is_dataclass(part):
        return part
    return {
        each.name: _given(getattr(part, each.name))
        for each in fields(part)
        if getattr(part, each.name) != each.default
    }


def _plain(value: Any) -> Any:
    """Converts NumPy's scalars to Python's."""
    return value.item()


@dataclass(frozen=True)
class Kernel:
    """One way to solve an operation.

    A CUDA source is plain CUDA C++ with one ``extern "C" __global__`` function named `entry`. A CPU source is a
    Python module that imports only NumPy and Numba; its function `entry` takes the tensors and then the
    scalars. Rendering prepends the config to either source, as constants.

    Attributes:
        operation: Name of the operation.
        name: Name of the kernel, unique among those of its operation and target.
        target: ``cuda`` or ``cpu``.
        source: File of the source.
        idea: One line for people.
        parameters: The tunable choices.
        constraints: Rules that a legal config obeys.
        launch: ``(problem, config)`` -> `Launch`; CUDA only.
        entry: Function to call; by default the operation's name.
        defaults: The config that a person would try first; by default the first legal one.
        options: Compiler options beside the usual ones; CUDA only.
        declared_in: File of the declaration; set by the catalogue.
        includes: Files that are prepended to the source, in this order. Kernels can share code through them,
            and a rendered kernel is still one text.
        starts: Further configs to try first, for devices or problems to which `defaults` do not suit. Each
            names all parameters.
        tiles: ``(problem, config)`` -> elements of each dim that a unit of work takes, by dim: a block of a
            CUDA kernel, a register tile of a CPU kernel. It determines how much is computed beyond the
            problem's edge, and how blocks fill a device. Dims that are not divided are missing. For a dim that
            several blocks share, it gives the share of one block (``p.k / c.SPLIT_K``). As in constraints, the
            config's attributes may be NumPy arrays of many configs. None if not declared.
        threads: The parameter that sets the number of CPU threads; empty if there is none.
        fallback: The plain kernel that computes if this one does not take the inputs; its launch is added
            behind the others. None if this one takes all.
        architecture: The only one that the source is written for, e.g. ``sm_90a``; empty if any will do.
            The constraints say which devices have it.
        precisions: What it may be used for, of `tuner.declare.problem.PRECISIONS`. A kernel that serves
            ``ieee`` serves every other one as well.
        dtypes: What it computes in; by default all dtypes of the operation but those of `Operation.sums`.
    """

    operation: str
    name: str
    target: str
    source: Path
    idea: str = ""
    parameters: tuple[Parameter, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    launch: Callable[[Problem, Config], Launch] | None = None
    entry: str = ""
    defaults: Mapping[str, Value] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    declared_in: Path | None = None
    includes: tuple[Path, ...] = ()
    starts: tuple[Mapping[str, Value], ...] = ()
    tiles: Callable[[Problem, Any], Mapping[str, Any]] | None = None
    threads: str = ""
    precisions: tuple[str, ...] = (IEEE,)
    dtypes: tuple[str, ...] = ()
    fallback: Fallback | None = None
    architecture: str = ""

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise DeclarationError(
                f"target of kernel {self.name!r} is one of {', '.join(TARGETS)}, got {self.target!r}"
            )
        if (self.launch is None) == (self.target == "cuda"):
            raise DeclarationError(
                f"a cuda kernel needs a launch rule and a cpu kernel has none; kernel {self.name!r} "
                f"({self.target}) has {'none' if self.launch is None else 'one'}"
            )
        names = [parameter.name for parameter in self.parameters]
        if len(set(names)) != len(names):
            raise DeclarationError(f"parameters of kernel {self.name!r} have distinct names, got {names}")
        self._check_threads(names)
        known = {parameter.name: parameter.values for parameter in self.parameters}
        for name, value in [item for config in (self.defaults, *self.starts) for item in config.items()]:
            if value not in known.get(name, ()):
                raise DeclarationError(
                    f"defaults of kernel {self.name!r} are among its parameters' values, got {name}={value!r}"
                )
        if any(len(config) != len(names) for config in self.starts):
            raise DeclarationError(f"each of the starts of kernel {self.name!r} names all of {names}")
        if not self.entry:
            object.__setattr__(self, "entry", self.operation)
        self._check_precisions()

    def serves(self, precision: str) -> bool:
        """Whether the kernel may compute a problem of that precision."""
        return IEEE in self.precisions or precision in self.precisions

    def _check_precisions(self) -> None:
        """A kernel that is not for every precision has no legal config for the others."""
        for precision in self.precisions or ("",):
            if precision not in PRECISIONS:
                raise DeclarationError(
                    f"precisions= of kernel {self.name!r} has one or more of {', '.join(PRECISIONS)}, "
                    f"got {precision!r}"
                )
        if IEEE in self.precisions:
            return
        sentence = f"precision is {' or '.join(self.precisions)}"
        if all(each.sentence != sentence for each in self.constraints):
            rule = Constraint(sentence, lambda p, d, c: self.serves(p.precision))
            object.__setattr__(self, "constraints", (rule, *self.constraints))

    def _check_threads(self, names: list[str]) -> None:
        if not self.threads:
            return
        if self.target != "cpu":
            raise DeclarationError(
                f"threads= names the parameter that is the number of CPU threads; kernel {self.name!r} "
                f"is for {self.target}, leave it out"
            )
        if self.threads not in names:
            raise DeclarationError(
                f"threads= of kernel {self.name!r} is one of its parameters {names}, got {self.threads!r}"
            )

    @cached_property
    def text(self) -> str:
        """The includes and the source, before rendering.

        Raises:
            DeclarationError: A file cannot be read.
        """
        try:
            return "\n\n".join(path.read_text(encoding="utf-8") for path in (*self.includes, self.source))
        except (OSError, UnicodeDecodeError) as error:
            raise DeclarationError(f"source of kernel {self.name!r} cannot be read: {error}") from error

    @cached_property
    def source_hash(self) -> str:
        """Hash of what all configs of the kernel share: source with includes, entry, options.

        It ignores comments, docstrings, layout and the declaration. `launch_hash` covers the constants and
        launch that the declaration adds to each config.
        """
        parts = (measured_text(self.text, self.target), self.entry, *self.options)
        if self.fallback is not None and self.fallback.kernel is not None:
            parts = (*parts, self.fallback.kernel.source_hash)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    def launch_hash(self, problem: Problem, config: Mapping[str, Value]) -> str:
        """Hash of what rendering adds to source and config: the operation's constants and the launch.

        It ignores launch fields that have their default values, so that adding a field changes no hash.
        """
        launch = self.launched(problem, Config(config))
        return _launch_hash(problem.operation.constants(problem, self.target), launch)

    def launched(self, problem: Problem, config: Config) -> Launch | None:
        """The launch rule's answer, with the fallback's launch behind it; None for a CPU kernel.

        Raises:
            DeclarationError: The fallback's run is more than one launch.
        """
        if self.launch is None or self.fallback is None:
            return self.launch(problem, config) if self.launch else None
        launch, fallback, plain = self.launch(problem, config), self.fallback, self.fallback.kernel
        other = plain.launch(problem, Config(fallback.config(config)))
        if other.padded or other.pieces or other.workspace or other.steps:
            raise DeclarationError(
                f"a fallback is one launch without memory of its own; kernel {plain.name!r} with "
                f"{dict(fallback.config(config))} is more, choose another config"
            )
        names = [*(each.name for each in problem.tensors), *(each.name for each in problem.scalars)]
        last = Step(ENTRY, other.grid, other.block, other.shared_bytes, (fallback.asked, *names))
        return replace(launch, steps=(*launch.steps, last))

    def falls_back_to(self, config: Mapping[str, Value]) -> str:
        """Kernel and config that compute inputs which this one does not take; empty where it takes all."""
        return self.fallback.told(Config(config)) if self.fallback else ""

    def check_entry(self) -> None:
        """Refuses a source that does not define the function to call; every config would fail.

        A source that cannot be parsed is left to the compiler, which reports more about it.

        Raises:
            DeclarationError: The function is missing; the message names those that exist.
        """
        found = functions_of(self.text, self.target)
        if found is None or self.entry in found or names(self.text, self.target, self.entry):
            return
        there = f"has {', '.join(found)}" if found else "has none"
        raise DeclarationError(
            f"the source of kernel {self.name!r} needs a function {self.entry!r}, the name of its operation "
            f"unless entry= says otherwise, and {self.source} {there}; rename it, or declare entry="
        )

    def default_config(self) -> Config | None:
        """The declared default; None unless every parameter has one."""
        if len(self.defaults) != len(self.parameters):
            return None
        return Config({parameter.name: self.defaults[parameter.name] for parameter in self.parameters})

    def first_configs(self) -> tuple[Config, ...]:
        """The default and the further starts. The caller must skip those that are not legal."""
        default = self.default_config()
        return (*(() if default is None else (default,)), *(Config(each) for each in self.starts))

    def declared(self, where: Path) -> Kernel:
        """Returns the kernel with absolute paths, resolved from the file that declares it."""
        folder = where.parent
        includes = tuple((folder / path).resolve() for path in self.includes)
        source = (folder / self.source).resolve()
        return replace(self, source=source, includes=includes, declared_in=where)


@dataclass(frozen=True)
class Rendered:
    """A kernel and a config as one self-contained source text.

    Attributes:
        text: The source.
        entry: Function to call.
        target: ``cuda`` or ``cpu``.
        launch: Geometry; None for a CPU kernel.
        options: Compiler options.
        launch_hash: `Kernel.launch_hash` for the problem and config.
    """

    text: str
    entry: str
    target: str
    launch: Launch | None = None
    options: tuple[str, ...] = ()
    launch_hash: str = ""

    @property
    def hash(self) -> str:
        """Hash that names the rendered kernel."""
        return hashlib.sha256("\0".join((self.text, self.entry, *self.options)).encode()).hexdigest()[:24]


def _c_constants(kernel: Kernel, constants: Mapping[str, Any], config: Config) -> list[str]:
    """Writes macros rather than constexpr, because sources may use them in #if."""
    lines = [f"#define {name} {_c_token(value)}" for name, value in constants.items()]
    for parameter in kernel.parameters:
        value = config[parameter.name]
        if isinstance(value, str):
            lines += [f"#define {parameter.name}_{each} {index}" for index, each in enumerate(parameter.values)]
            lines.append(f"#define {parameter.name} {parameter.name}_{value}")
        else:
            lines.append(f"#define {parameter.name} {_c_token(value)}")
    return lines


def _c_token(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def render(kernel: Kernel, problem: Problem, config: Config) -> Rendered:
    """Prepends the config and the constants of the problem's operation to the source.

    Args:
        kernel: The kernel to render.
        problem: Supplies dtype, layout and the launch's shape; its dims do not enter the text.
        config: A legal config of the kernel for the problem.

    Returns:
        A source that compiles alone. String values of a CUDA kernel become numbered macros
        (``BORDER_check``, ``BORDER_pad``, and ``BORDER`` as one of them).
    """
    constants = problem.operation.constants(problem, kernel.target)
    if kernel.target == "cuda":
        text = "\n".join([*_c_constants(kernel, constants, config), "", kernel.text])
    else:
        lines = [f"{name} = {value!r}" for name, value in {**constants, **config}.items()]
        text = "\n".join([*lines, "", kernel.text])
    if kernel.fallback is not None:
        plain = kernel.fallback.kernel
        other = render(plain, problem, Config(kernel.fallback.config(config)))
        text = behind(text, other.text, plain.entry)
    launch = kernel.launched(problem, config)
    launch_hash = _launch_hash(constants, launch)
    return Rendered(text, kernel.entry, kernel.target, launch, kernel.options, launch_hash)
