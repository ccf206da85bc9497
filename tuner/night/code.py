"""What takes part in sentinels, and its machine code."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.declare.kernel import Kernel, Rendered, render
from tuner.declare.language import source_language
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.cuda.nvrtc import CubinCache, read_report
from tuner.results.measurement import Measurement
from tuner.results.sentinel import CHAMPION, Sentinel
from tuner.workers.bench import CompiledConfig
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


def of_before(watched: Watched, history: Sequence[Sentinel], now: Sentinel) -> CompiledConfig | str:
    """The machine code that an earlier night ran, from the cache; or why there is none.

    Args:
        watched: The problem with its champion.
        history: Earlier nights on the board.
        now: The present night.
    """
    present, champion = now.players[0], watched.contenders[0]
    earlier = [
        player
        for each in reversed(history)
        if (player := each.player(CHAMPION)) is not None and player.binary_hash != present.binary_hash
        if (player.kernel, dict(player.config)) == (present.kernel, dict(present.config))
    ]
    if not earlier:
        return "every earlier night ran the same machine code: the compiler is not the cause"
    rendered = render(champion.kernel, watched.problem, champion.config)
    binary = CubinCache().get(rendered, now.device.architecture, earlier[0].compiler)
    if binary is None:
        return f"it was made by {earlier[0].compiler}, and is no longer in the cache"
    return CompiledConfig(rendered, binary.code, binary.report)


def by_nvcc(watched: Watched, architecture: str) -> CompiledConfig | str:
    """Machine code by the CUDA toolkit's own compiler; or why there is none."""
    champion = watched.contenders[0]
    if not source_language(champion.kernel.target).has_launch or shutil.which("nvcc") is None:
        return "none is installed; nvcc would be used"
    rendered = render(champion.kernel, watched.problem, champion.config)
    with tempfile.TemporaryDirectory() as folder:
        return _compiled(rendered, architecture, Path(folder))


def _compiled(rendered: Rendered, architecture: str, folder: Path) -> CompiledConfig | str:
    source, cubin = folder / "kernel.cu", folder / "kernel.cubin"
    source.write_text(rendered.text, encoding="utf-8")
    asked = ["nvcc", "-cubin", f"-arch={architecture}", "-std=c++17", "-Xptxas=-v", "-o", str(cubin)]
    done = subprocess.run([*asked, str(source)], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"nvcc refuses the source: {(done.stderr.strip().splitlines() or ['without a word'])[-1]}"
    code = cubin.read_bytes()
    report = replace(read_report(done.stderr, code, rendered.entry), compiler="nvcc")
    return CompiledConfig(rendered, code, report)
