"""What takes part in sentinels, and its machine code."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tuner.declare.kernel import Kernel, Rendered, render
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.measuring.bench import CompiledConfig
from tuner.results.measurement import Measurement
from tuner.workers.compile_pool import CompilePool, workers_for


@dataclass(frozen=True)
class Contender:
    """A config that takes part in a sentinel.

    Attributes:
        name: One of `tuner.results.sentinel.PLAYERS`.
        kernel: Kernel, as declared now.
        config: A legal config of it.
    """

    name: str
    kernel: Kernel
    config: Config


@dataclass(frozen=True)
class Watched:
    """A problem to be timed as a sentinel.

    Attributes:
        problem: The problem.
        regime: How time is taken.
        contenders: The configs, the champion first.
    """

    problem: Problem
    regime: str
    contenders: tuple[Contender, ...]

    @property
    def named(self) -> dict[str, object]:
        """The problem as workers are told it."""
        return {**self.problem.to_json(), "origin": str(self.problem.operation.origin or "")}


class Code:
    """Machine code of all that takes part, compiled once for any number of passes."""

    def __init__(self, opening: str, architecture: str = "") -> None:
        """Compiles nothing yet.

        Args:
            opening: Spec of the compile workers; see `tuner.devices.detect.DetectedDevice.opening`.
            architecture: To compile for; empty for that of the first board that is opened.
        """
        self._opening, self._architecture = opening, architecture
        self._found: dict[str, CompiledConfig | Measurement] = {}

    def compile(self, watched: Iterable[Watched], architecture: str = "") -> None:
        """Compiles what is not compiled yet, and waits for it.

        Args:
            watched: What takes part.
            architecture: Of the open board, which only its process knows.

        Raises:
            DeviceTrouble: The compiler is not there.
        """
        wanted: dict[str, tuple[Rendered, Mapping[str, object]]] = {}
        for each in watched:
            for contender in each.contenders:
                rendered = render(contender.kernel, each.problem, contender.config)
                if rendered.hash not in self._found:
                    wanted[rendered.hash] = rendered, each.named
        if not wanted:
            return
        self._architecture = self._architecture or architecture
        size = min(len(wanted), workers_for(len(os.sched_getaffinity(0)), 1))
        pool = CompilePool(self._opening, self._architecture, next(iter(wanted.values()))[1], size)
        try:
            for ticket, (rendered, named) in enumerate(wanted.values()):
                pool.submit(ticket, rendered, named)
            hashes = list(wanted)
            while pool.pending:
                for compiled in pool.ready():
                    found = compiled.compiled_config or compiled.failure
                    assert found is not None
                    self._found[hashes[compiled.ticket]] = found
                time.sleep(0.005)
        finally:
            pool.close()

    def put(self, watched: Watched, contender: Contender, compiled: CompiledConfig) -> None:
        """Takes machine code that was made otherwise, for instance by another compiler."""
        self._found[render(contender.kernel, watched.problem, contender.config).hash] = compiled

    def of(self, watched: Watched, contender: Contender) -> CompiledConfig | Measurement:
        """The machine code for a problem's launch, or why there is none."""
        rendered = render(contender.kernel, watched.problem, contender.config)
        found = self._found[rendered.hash]
        return replace(found, rendered=rendered) if isinstance(found, CompiledConfig) else found
