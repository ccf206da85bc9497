"""Numbers with their units, for people: the command line, notebooks and pages show the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Flops per byte above which speed is shown in TFLOPS rather than GB/s.
COMPUTE_BOUND = 4.0


def duration(seconds: float) -> str:
    """A time with three digits and its unit."""
    return _scaled(seconds, "s")


def energy(joules: float) -> str:
    """An energy with three digits and its unit."""
    return _scaled(joules, "J")


def _scaled(value: float, unit: str) -> str:
    for scale, prefix in ((1.0, ""), (1e-3, "m"), (1e-6, "u")):
        if value >= scale:
            shown = value / scale
            return f"{shown:.3g} {prefix}{unit}" if shown < 1000 else f"{shown:.0f} {prefix}{unit}"
    return f"{value / 1e-9:.3g} n{unit}"


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def speed(flops: float, moved_bytes: float, time_s: float) -> str:
    """TFLOPS if arithmetic is the limit, else GB/s."""
    if flops >= COMPUTE_BOUND * moved_bytes:
        tflops = flops / time_s / 1e12
        return f"{tflops:.2f} TFLOPS" if tflops >= 1 else f"{tflops * 1e3:.1f} GFLOPS"
    return f"{moved_bytes / time_s / 1e9:.1f} GB/s"


def config_text(config: Mapping[str, Any]) -> str:
    """A config on one line."""
    return " ".join(f"{name}={value}" for name, value in config.items()) or "-"
