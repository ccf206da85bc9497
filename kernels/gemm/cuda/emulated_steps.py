"""gemm on CUDA: steps towards FP32 from FP16 products, which ladders show and nothing else uses."""

from pathlib import Path

from tuner import Constraint, Kernel, Scope, Source, Value, choice
from tuner.declare.rules import shared_fits

from ._emulated import LARGE, SOURCES, aligned, launch, needs_wgmma, shared_bytes
from ._operands import float32_alone

#: An error so many times what FP32's rounding explains is shown: FP16's last bit is 2^13 times FP32's.
SHOWN = 2.0**16
#: Parameters whose values have names; the source asks for each.
NAMED = {
    "ORDER": ("rows", "snake"), "TURNS": ("free", "taken", "early"), "PROMOTION": ("plain", "compensated"),
    "PLAIN": ("aligned", "any"),
}  # fmt: skip


def _step(name: str, idea: str, **more: Value) -> Kernel:
    """The config that is best at 8192 x 8192 x 8192, with nothing to tune."""
    config = LARGE | more
    return Kernel(
        operation="gemm",
        name=name,
        target="cuda",
        source=Source(Path("emulated.cu"), includes=SOURCES),
        idea=idea,
        scope=Scope(precisions=("emulated",), architecture="sm_90a", shown=SHOWN),
        parameters=tuple(choice(each, *NAMED.get(each, (value,))) for each, value in config.items()),
        constraints=(
            needs_wgmma(),
            float32_alone(),
            Constraint("m, n and k are multiples of four", lambda p, d, c: aligned(p)),
            Constraint("nothing is tuned", lambda p, d, c: sum(c[each] != config[each] for each in NAMED) == 0),
            shared_fits("the places of both tiles and their factors", shared_bytes),
        ),
        launch=launch,
        starts=(config,),
    )


ONCE = _step("one_product", "one FP16 product on tensor cores: fast, and as wrong as FP16", SHOWN=1)
THRICE = _step(
    "three_products", "three FP16 products, summed inside the tensor cores to the end: inexact", SHOWN=3
)
PROMOTED = _step("promoted", "the same, summed in FP32 registers every 64 terms: exact, not tuned yet")
