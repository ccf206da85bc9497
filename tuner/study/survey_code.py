"""The machine code of a survey's configs: each is compiled once for a dtype and layout, ahead of its use."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tuner.declare.kernel import Kernel, Rendered, render
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.measuring.bench import CompiledConfig
from tuner.results.measurement import Measurement, Outcome
from tuner.workers.compile_pool import CompilePool, ruled_out, workers_for
from tuner.workers.crew import Crew

#: Sources that wait or are compiled for each compile worker.
BACKLOG = 4


@dataclass(frozen=True)
class Code:
    """A config for one problem.

    Attributes:
        key: Names the machine code.
        rendered: Source, and the launch for the problem.
        compiled: The machine code, or why there is none.
    """

    key: str
    rendered: Rendered
    compiled: CompiledConfig | Measurement


class SurveyCode:
    """Compiles a survey's configs.

    Attributes:
        compiled: Sources that have been compiled.
    """

    def __init__(self, crew: Crew, configs: Sequence[tuple[Kernel, Config]]) -> None:
        """Takes the configs; compile workers start at first use.

        Args:
            crew: The device's workers.
            configs: Kernels and configs by number; more may come.
        """
        self._crew, self._configs = crew, configs
        self._info = crew.devices[0].info
        self._pool: CompilePool | None = None
        self._keys: list[str] = []
        self._found: dict[str, CompiledConfig | Measurement | None] = {}
        self._rendered: dict[tuple[Problem, int], tuple[str, Rendered]] = {}
        self._registers: dict[int, int] = {}
        self.compiled = 0

    @property
    def room(self) -> int:
        """Sources that may be asked for now, if compile workers are to have enough to do and no more."""
        size = workers_for(len(os.sched_getaffinity(0)), 1) if self._pool is None else self._pool.size
        return BACKLOG * size - self.pending

    @property
    def pending(self) -> int:
        """Compilations that are not done."""
        return 0 if self._pool is None else self._pool.pending

    def want(self, problem: Problem, numbers: Iterable[int]) -> None:
        """Compiles configs that are to be timed at a problem, those that are not compiled yet."""
        for number in numbers:
            rendered = render(self._configs[number][0], problem, self._configs[number][1])
            key = hashlib.sha256("\0".join((rendered.text, *rendered.options)).encode()).hexdigest()[:24]
            self._rendered[problem, number] = key, rendered
            if key not in self._found:
                self._found[key] = None
                self._keys.append(key)
                self._of(problem).submit(len(self._keys) - 1, rendered, self._named(problem))

    def _named(self, problem: Problem) -> dict[str, object]:
        return {**problem.to_json(), "origin": str(problem.operation.origin or "")}

    def _of(self, problem: Problem) -> CompilePool:
        if self._pool is None:
            self._pool = self._crew.pool(self._named(problem))
        return self._pool

    def collect(self) -> None:
        """Takes what has been compiled.

        Raises:
            DeviceTrouble: The compiler is not there.
        """
        for each in self._pool.ready() if self._pool is not None else ():
            self.compiled += 1
            self._found[self._keys[each.ticket]] = self._checked(each.compiled_config) or each.failure

    def _checked(self, found: CompiledConfig | None) -> CompiledConfig | Measurement | None:
        """What can be launched, or why it cannot. What spills is timed: a model learns that it is slow."""
        refused = ruled_out(found, self._info) if found is not None else None
        return refused if refused is not None and refused.outcome is not Outcome.PRUNED else found

    def ready(self, problem: Problem, numbers: Iterable[int]) -> bool:
        """Whether all that is to be timed at a problem is compiled, or failed."""
        return all(self._found[self._rendered[problem, number][0]] is not None for number in numbers)

    def of(self, problem: Problem, number: int) -> Code:
        """A config at a problem; asked once."""
        key, rendered = self._rendered.pop((problem, number))
        found = self._found[key]
        assert found is not None, "it is ready"
        if isinstance(found, CompiledConfig):
            self._registers[number] = found.compiled.registers
            found = replace(found, rendered=replace(found.rendered, launch=rendered.launch))
        return Code(key, rendered, found)

    def registers(self, number: int) -> int:
        """Registers of a config by the compiler's report; 0 if it did not compile."""
        return self._registers.get(number, 0)
