"""Declarations of kernels: source, parameters, constraints and launch rule; and rendering."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tuner.declare.language import languages, source_language
from tuner.declare.launch import Launch, Step, Workspace, hash_of_launch
from tuner.declare.problem import IEEE, PRECISIONS, Problem
from tuner.declare.space import Config, Constraint, Parameter, Value
from tuner.errors import DeclarationError


def measured_text(text: str, target: str) -> str:
    """The part of a source with this target on which a measurement depends."""
    return source_language(target).measured_text(text)


#: Name of the function that a fallback becomes.
ENTRY = "fallback"


@dataclass(frozen=True)
class Fallback:
    """A plain kernel of the same operation, launched last: it computes if a word in the workspace is not 0.

    Its result is then its own, to the bit.

    Attributes:
        name: Name of the kernel, of the same operation and target, whose run is one launch without padding.
        config: Config of the other kernel -> the plain kernel's, with all parameters.
        asked: Region of the workspace that begins with the 32-bit word; the steps before set it.
        kernel: The kernel of that name; set by the catalogue.
        among: All plain kernels of the operation and target; set by the catalogue.
    """

    name: str
    config: Callable[[Any], Mapping[str, Any]]
    asked: str
    kernel: Any = field(default=None, repr=False)
    among: tuple[Any, ...] = field(default=(), repr=False)

    def text(self, config: Any) -> str:
        """Kernel and config in words; `read` understands them."""
        return f"{self.name} {Config(self.config(config))}".strip()

    def to(self, kernel: Any, config: Mapping[str, Any]) -> Fallback:
        """The same with another plain kernel, of the same operation and target, and this config of it."""
        return replace(self, name=kernel.name, config=lambda c: config, kernel=kernel)

    def read(self, text: str, problem: Any, device: Any) -> Fallback:
        """The fallback that `text` put into words, if it may be used for this problem; else this one.

        Args:
            text: Kernel and config; empty for none.
            problem: The problem, which may be another one than it was written for.
            device: Where.
        """
        name, *values = text.split() or [""]
        written = dict(value.split("=", 1) for value in values)
        for kernel in self.among:
            config = Config(
                {
                    parameter.name: value
                    for parameter in kernel.parameters
                    for value in parameter.values
                    if written.get(parameter.name) == str(value)
                }
            )
            complete = len(config) == len(kernel.parameters) == len(written)
            if kernel.name == name and complete and kernel.allows(problem, device, config):
                return self.to(kernel, config) if kernel.launch(problem, config).is_single else self
        return self


def guarded(text: str, entry: str) -> str:
    """A kernel's source whose function is ``fallback``, and returns at once unless its first argument asks.

    Args:
        text: CUDA C++ in which one function is named `entry`.
        entry: Its name.

    Raises:
        DeclarationError: It cannot be found.
    """
    head = re.compile(rf'(extern\s+"C"\s+__global__[^;{{}}]*?)\b{re.escape(entry)}\s*\(([^;{{}}]*)\{{')
    match = head.search(text)
    if match is None:
        raise DeclarationError(
            f'a fallback\'s source has an extern "C" __global__ function {entry!r}, found none; name it so'
        )
    opened = f"{match[1]}{ENTRY}(const unsigned* __restrict__ asked, {match[2]}{{"
    return f"{text[: match.start()]}{opened}\n    if (!*asked) return;{text[match.end() :]}"


def behind(text: str, plain: str, entry: str) -> str:
    """A source with its fallback's behind it, in a namespace, the macros of the first forgotten.

    Args:
        text: The rendered source of the kernel that falls back.
        plain: The rendered source of the plain kernel.
        entry: Function of the plain kernel.

    Raises:
        DeclarationError: See `guarded`.
    """
    macros = dict.fromkeys(re.findall(r"^#define (\w+)", text, re.MULTILINE))
    used = f"using {ENTRY}_kernel::{ENTRY};"
    forgotten = [f"#undef {name}" for name in macros]
    return "\n".join(
        [text, "", *forgotten, "", f"namespace {ENTRY}_kernel {{", guarded(plain, entry), "}", used, ""]
    )


@dataclass(frozen=True)
class Source:
    """What is compiled.

    A CUDA source is plain CUDA C++ with one ``extern "C" __global__`` function named `entry`. A CPU source is a
    Python module that imports only NumPy and Numba; its function `entry` takes the tensors and then the
    scalars. Rendering prepends the config to either source, as constants.

    Attributes:
        file: The kernel's own file, relative to that of the declaration.
        includes: Files that are prepended to it, in this order. Kernels can share code through them, and a
            rendered kernel is still one text.
        entry: Function to call; by default the operation's name.
        options: Compiler options beside the usual ones; CUDA only.
        finishing: A file that is put behind the kernel's own where a problem has an epilogue, and applies it;
            CPU only. `Scope.epilogues` is then True.
        declared_in: File of the declaration; set by the catalogue.
    """

    file: Path
    includes: tuple[Path, ...] = ()
    entry: str = ""
    options: tuple[str, ...] = ()
    finishing: Path | None = None
    declared_in: Path | None = None

    def declared(self, where: Path) -> Source:
        """The same with absolute paths, resolved from the file that declares it."""
        file, *includes = ((where.parent / path).resolve() for path in (self.file, *self.includes))
        finishing = (where.parent / self.finishing).resolve() if self.finishing is not None else None
        return replace(self, file=file, includes=tuple(includes), finishing=finishing, declared_in=where)


@dataclass(frozen=True)
class Scope:
    """What a kernel computes, and where.

    Attributes:
        precisions: What it may be used for, of `tuner.declare.problem.PRECISIONS`. A kernel that serves
            ``ieee`` serves every other one as well.
        dtypes: What it computes in; by default all dtypes of the operation but those of `Operation.sums`.
        epilogues: True if it applies a problem's epilogue; else it has no legal config where there is one.
        fallback: The plain kernel that computes if this one does not take the inputs; its launch is added
            behind the others. None if this one takes all.
        architecture: The only one that the source is written for, e.g. ``sm_90a``; empty if any will do.
            The constraints say which devices have it.
        shown: Above 0, the kernel is a step of ladders and nothing else: no study, lookup or call knows it. Its
            result may be so many times further off than others', so that a ladder can show what is inexact.
    """

    precisions: tuple[str, ...] = (IEEE,)
    dtypes: tuple[str, ...] = ()
    epilogues: bool = False
    fallback: Fallback | None = None
    architecture: str = ""
    shown: float = 0.0


@dataclass(frozen=True)
class Kernel:
    """One way to solve an operation.

    Attributes:
        operation: Name of the operation.
        name: Name of the kernel, unique among those of its operation and target.
        target: ``cuda`` or ``cpu``.
        source: What is compiled; the path of a file alone will do.
        idea: One line for people.
        parameters: The tunable choices.
        constraints: Rules that a legal config obeys.
        launch: ``(problem, config)`` -> `Launch`; CUDA only.
        tiles: ``(problem, config)`` -> elements of each dim that a unit of work takes, by dim: a block of a
            CUDA kernel, a register tile of a CPU kernel. It determines how much is computed beyond the
            problem's edge, and how blocks fill a device. Dims that are not divided are missing, or
            infinite where a unit takes them whole. For a dim that several blocks share, it gives the share of
            one block (``p.k / c.SPLIT_K``). As in constraints, the config's attributes may be NumPy arrays of
            many configs. None if not declared.
        threads: The parameter that sets the number of CPU threads; empty if there is none.
        starts: Configs to try first; each names all parameters. The first is the default, which a person would
            try first. The others suit other devices or problems.
        scope: What it computes, and where; by default every problem of the operation.
    """

    operation: str
    name: str
    target: str
    source: Source
    idea: str = ""
    parameters: tuple[Parameter, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    launch: Callable[[Problem, Config], Launch] | None = None
    tiles: Callable[[Problem, Any], Mapping[str, Any]] | None = None
    threads: str = ""
    starts: tuple[Mapping[str, Value], ...] = ()
    scope: Scope = Scope()

    def __post_init__(self) -> None:
        language = languages().get(self.target)
        known = {parameter.name: parameter.values for parameter in self.parameters}
        # Starts have few values in common with many configs: each value is looked at once.
        values = dict.fromkeys(item for config in self.starts for item in config.items())
        wrong = [f"{name}={value!r}" for name, value in values if value not in known.get(name, ())]
        name, names = f"kernel {self.name!r}", [parameter.name for parameter in self.parameters]
        precisions = self.scope.precisions
        strange = [precision for precision in precisions or ("",) if precision not in PRECISIONS]
        has_launch = "none" if self.launch is None else "one"
        rules = {
            f"target of {name} is one of {', '.join(languages())}, got {self.target!r}": language is not None,
            f"a cuda kernel needs a launch rule and a cpu kernel has none; {name} ({self.target}) has "
            f"{has_launch}": language is None or (self.launch is not None) == language.has_launch,
            f"parameters of {name} have distinct names, got {names}": len(known) == len(names),
            f"threads= names the parameter that is the number of CPU threads; {name} is for {self.target}, "
            "leave it out": not (self.threads and language and language.has_launch),
            f"threads= of {name} is one of its parameters {names}, got {self.threads!r}": self.threads
            in ("", *names),
            f"starts of {name} are among its parameters' values, got {', '.join(wrong)}": not wrong,
            f"each of the starts of {name} names all of {names}": all(
                len(config) == len(names) for config in self.starts
            ),
            f"precisions= of {name} has one or more of {', '.join(PRECISIONS)}, got {strange}": not strange,
        }
        for rule, holds in rules.items():
            if not holds:
                raise DeclarationError(rule)
        scope = self.scope
        source = Source(self.source) if isinstance(self.source, Path) else self.source  # a file alone will do
        object.__setattr__(self, "source", replace(source, entry=source.entry or self.operation))
        epilogues = scope.epilogues or source.finishing is not None
        object.__setattr__(self, "scope", replace(scope, epilogues=epilogues))

    @property
    def kind(self) -> str:
        """Name of the kind of device that it runs on."""
        return source_language(self.target).kind

    @property
    def is_library(self) -> bool:
        """Whether what runs is a library's; see `tuner.declare.language.SourceLanguage`."""
        return source_language(self.target).is_library

    def serves(self, precision: str) -> bool:
        """Whether the kernel may compute a problem of that precision."""
        return IEEE in self.scope.precisions or precision in self.scope.precisions

    def allows(self, problem: Problem, device: Any, config: Config) -> bool:
        """Whether a config is right for a problem on a device, be it slow there."""
        return all(rule.for_speed or rule.rule(problem, device, config) for rule in self.constraints)

    def legal(self, problem: Problem, device: Any, config: Config) -> bool:
        """Whether a config obeys every rule."""
        return all(rule.rule(problem, device, config) for rule in self.constraints)

    @cached_property
    def text(self) -> str:
        """The includes and the source, before rendering.

        Raises:
            DeclarationError: A file cannot be read.
        """
        return "\n\n".join(self._read("source", path) for path in (*self.source.includes, self.source.file))

    @cached_property
    def finishing_text(self) -> str:
        """The text of `Source.finishing`; empty if there is none.

        Raises:
            DeclarationError: The file cannot be read.
        """
        finishing = self.source.finishing
        return "" if finishing is None else self._read("finishing=", finishing)

    def _read(self, what: str, path: Path) -> str:
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DeclarationError(f"{what} of kernel {self.name!r} cannot be read: {error}") from error

    @cached_property
    def source_hash(self) -> str:
        """Hash of what all configs of the kernel share: source with includes, entry, options.

        It ignores comments, docstrings, layout, the declaration, and the fallback, which does nothing while
        a kernel is timed. `launch_hash` covers the constants and launch that the declaration adds.
        """
        parts = (measured_text(self.text, self.target), self.source.entry, *self.source.options)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    def launch_hash(self, problem: Problem, config: Mapping[str, Value]) -> str:
        """Hash of what rendering adds to source and config: the operation's constants and the launch.

        It ignores launch fields that have their default values, so that adding a field changes no hash. What is
        put behind the source for an epilogue is part of it.
        """
        launch = self.launch(problem, Config(config)) if self.launch else None
        constants = problem.operation.constants(problem, self.target)
        if problem.epilogue and self.source.finishing is not None:
            finishing = measured_text(self.finishing_text, self.target)
            constants = {**constants, "finishing": hashlib.sha256(finishing.encode()).hexdigest()[:16]}
        return hash_of_launch(constants, launch)

    def launched(self, problem: Problem, config: Config) -> Launch | None:
        """The launch rule's answer, with the fallback's launch behind it; None for a CPU kernel.

        Raises:
            DeclarationError: The fallback's run is more than one launch.
        """
        if self.launch is None or self.scope.fallback is None:
            return self.launch(problem, config) if self.launch else None
        launch, fallback = self.launch(problem, config), self.scope.fallback
        plain = fallback.kernel
        other = plain.launch(problem, Config(fallback.config(config)))
        if not other.is_single:
            raise DeclarationError(
                f"a fallback is one launch that takes the tensors as they are; kernel {plain.name!r} with "
                f"{dict(fallback.config(config))} is more, choose another config"
            )
        names = [*(tensor.name for tensor in problem.tensors), *(scalar.name for scalar in problem.scalars)]
        workspace = launch.workspace or Workspace(0)
        if other.workspace is not None:
            workspace, names = workspace.with_another(other.workspace, ENTRY), [*names, ENTRY]
        last = Step(ENTRY, other.grid, other.block, other.shared_bytes, (fallback.asked, *names))
        return replace(launch, steps=(*launch.steps, last), workspace=workspace)

    def as_recorded(self, fallback: str, problem: Problem, device: Any) -> Kernel:
        """The same kernel with the plain one behind it that a record names, where that may be used.

        Source and launch hashes stay as they are.
        """
        if self.scope.fallback is None:
            return self
        return self.backed_by(self.scope.fallback.read(fallback, problem, device))

    def backed_by(self, fallback: Fallback) -> Kernel:
        """The same kernel with another plain one behind it."""
        return replace(self, scope=replace(self.scope, fallback=fallback))

    def falls_back_to(self, config: Mapping[str, Value]) -> str:
        """Kernel and config that compute inputs which this one does not take; empty where it takes all."""
        return self.scope.fallback.text(Config(config)) if self.scope.fallback else ""

    def check_entry(self) -> None:
        """Refuses a source that does not name the function to call; every config would fail.

        Raises:
            DeclarationError: The function is missing, and no macro can paste its name.
        """
        entry = self.source.entry
        if not re.search(rf"\b{re.escape(entry)}\b|##", self.text):
            raise DeclarationError(
                f"the source of kernel {self.name!r} needs a function {entry!r}, the name of its operation "
                f"unless entry= says otherwise, and {self.source.file} has none; rename it, or declare entry="
            )

    def default_config(self) -> Config | None:
        """The first start; None where a kernel with parameters has none."""
        return next(iter(self.first_configs()), None)

    def first_configs(self) -> tuple[Config, ...]:
        """The starts, or the only config. The caller must skip those that are not legal."""
        names = [parameter.name for parameter in self.parameters]
        starts = self.starts if names else ({},)
        return tuple(Config({name: start[name] for name in names}) for start in starts)

    def declared(self, where: Path) -> Kernel:
        """Returns the kernel with absolute paths, resolved from the file that declares it."""
        return replace(self, source=self.source.declared(where))


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
        allowance: So many times the usual tolerance is allowed; see `Scope.shown`.
    """

    text: str
    entry: str
    target: str
    launch: Launch | None = None
    options: tuple[str, ...] = ()
    launch_hash: str = ""
    allowance: float = 1.0

    @property
    def hash(self) -> str:
        """Hash that names the rendered kernel."""
        return hashlib.sha256("\0".join((self.text, self.entry, *self.options)).encode()).hexdigest()[:24]


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
    finishing = kernel.finishing_text if problem.epilogue else ""
    text = source_language(kernel.target).rendered(kernel, constants, config, finishing)
    fallback = kernel.scope.fallback
    if fallback is not None:
        other = render(fallback.kernel, problem, Config(fallback.config(config)))
        text = behind(text, other.text, other.entry)
    launch = kernel.launched(problem, config)
    launch_hash = kernel.launch_hash(problem, config)
    allowance = kernel.scope.shown or 1.0
    source = kernel.source
    return Rendered(text, source.entry, kernel.target, launch, source.options, launch_hash, allowance)
