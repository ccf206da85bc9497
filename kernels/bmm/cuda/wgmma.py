"""bmm on CUDA in numbers of 16 or 8 bits, on tensor cores of sm_90 fed by tensor maps."""

from pathlib import Path
from typing import Any

from tuner import FLOAT8_DTYPES, Epilogue, Kernel, Launch, Problem, Scope, Source, Step
from tuner.declare.rules import wgmma_parameters, wgmma_rules, wgmma_shared_bytes, wgmma_starts

from ._wgmma import SOURCES, all_tiles, countable, given, maps


def _launch(p: Problem, c: Any) -> Launch:
    blocks, threads = c.BLOCKS or all_tiles(p, c), 128 * (c.CONSUMERS + 1)
    arguments = given(c, *Epilogue.read(p.epilogue).operands)
    step = Step("bmm", (blocks,), (threads,), wgmma_shared_bytes(p, c), arguments)
    return Launch.of("bmm", [step], maps=maps(p, c))


KERNEL = Kernel(
    operation="bmm",
    name="wgmma",
    target="cuda",
    source=Source(Path("wgmma.cu"), includes=SOURCES),
    idea="tensor maps fetch what warpgroups multiply; blocks stay, and take tiles of all products in turn",
    scope=Scope(dtypes=("float16", "bfloat16", *FLOAT8_DTYPES), epilogues=True, architecture="sm_90a"),
    parameters=wgmma_parameters(),
    constraints=(*wgmma_rules(lambda p, c: p.m), *countable()),
    launch=_launch,
    tiles=lambda p, c: {"batch": 1, "m": c.BM, "n": c.BN},
    starts=wgmma_starts(),
)
