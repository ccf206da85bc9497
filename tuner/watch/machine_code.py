"""Other machine code of the same source and config: of an earlier night, or by another compiler."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tuner.declare.kernel import Rendered, render
from tuner.devices.cubin_cache import CubinCache
from tuner.devices.nvrtc import read_report
from tuner.measuring.bench import CompiledConfig
from tuner.results.sentinel import CHAMPION, Sentinel
from tuner.watch.code import Watched


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
    if champion.kernel.target != "cuda" or shutil.which("nvcc") is None:
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
