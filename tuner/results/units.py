"""How figures are written for people: times, energies, speeds with three digits and the unit that suits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Flops per byte from which arithmetic is the limit, and speed is told in TFLOPS rather than GB/s.
COMPUTE_BOUND = 4.0


def duration(seconds: float) -> str:
    """A time with three digits and its unit."""
    return _scaled(seconds, "s")


def energy(joules: float) -> str:
    """An energy with three digits and its unit."""
    return _scaled(joules, "J")


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def speed(flops: float, moved_bytes: float, time_s: float) -> str:
    """The speed of a run with three digits: GB/s where memory limits it, else GFLOPS or TFLOPS.

    Args:
        flops: Floating-point operations of the run.
        moved_bytes: Bytes that it moves at the least.
        time_s: Seconds that it takes.
    """
    if not is_compute_bound(flops, moved_bytes):
        return f"{three_digits(moved_bytes / time_s / 1e9)} GB/s"
    tflops = flops / time_s / 1e12
    return f"{three_digits(tflops)} TFLOPS" if tflops >= 1 else f"{three_digits(tflops * 1e3)} GFLOPS"


def answer_speed(answer: Mapping[str, Any]) -> str:
    """The speed of an answer in JSON, from its ``tflops``, ``gbps`` and ``time_s``; "-" without a time."""
    time_s = answer.get("time_s")
    if not time_s:
        return "-"
    return speed(answer["tflops"] * 1e12 * time_s, answer["gbps"] * 1e9 * time_s, time_s)


def is_compute_bound(flops: float, moved_bytes: float) -> bool:
    """True if arithmetic limits a run, and not memory."""
    return flops >= COMPUTE_BOUND * moved_bytes


def three_digits(value: float) -> str:
    """A number with three digits, without an exponent above 1000."""
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def config_text(config: Mapping[str, Any]) -> str:
    """A config on one line."""
    return " ".join(f"{name}={value}" for name, value in config.items()) or "-"


def _scaled(value: float, unit: str) -> str:
    for scale, prefix in ((1.0, ""), (1e-3, "m"), (1e-6, "u")):
        if value >= scale:
            return f"{three_digits(value / scale)} {prefix}{unit}"
    return f"{three_digits(value / 1e-9)} n{unit}"
