"""Numbers with their units, for people: the command line, notebooks and pages show the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.results.measurement import headline
from tuner.study.progress import Progress

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


def failures(reasons: Mapping[str, str]) -> list[str]:
    """How trials failed, a line for each outcome.

    Args:
        reasons: Outcome -> its first reason.
    """
    return [f"{name.lower().replace('_', ' ')}: {headline(reason)}" for name, reason in reasons.items()]


def where_time_went(progress: Progress) -> str:
    """One line that says what the seconds of a run were spent on."""

    def listed(*names: str) -> str:
        told = [
            f"{name} {progress.spent_s[name]:.1f} s" for name in names if progress.spent_s.get(name, 0) >= 0.05
        ]
        return ", ".join(told) or "nothing"

    wall = listed("opening", "measuring", "compiling", "searching", "bookkeeping", "finals")
    device, beside = listed("load", "verify", "time", "power"), listed("compile", "thinking", "storing")
    return f"{clock(progress.elapsed_s)} in all: {wall}; of measuring: {device}; beside it: {beside}"


def speed(flops: float, moved_bytes: float, time_s: float) -> str:
    """TFLOPS if arithmetic is the limit, else GB/s."""
    if flops >= COMPUTE_BOUND * moved_bytes:
        tflops = flops / time_s / 1e12
        return f"{tflops:.2f} TFLOPS" if tflops >= 1 else f"{tflops * 1e3:.1f} GFLOPS"
    return f"{moved_bytes / time_s / 1e9:.1f} GB/s"


def config_text(config: Mapping[str, Any]) -> str:
    """A config on one line."""
    return " ".join(f"{name}={value}" for name, value in config.items()) or "-"
