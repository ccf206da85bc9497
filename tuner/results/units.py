"""How figures are written for people: times, energies, speeds with three digits and the unit that suits."""

from collections.abc import Mapping
from typing import Any

#: Flops per byte from which arithmetic is the limit, and speed is told in TFLOPS rather than GB/s.
COMPUTE_BOUND = 4.0
#: Rounds disagree if the ends of a ratio's interval are further apart than by this factor.
DISAGREE = 1.05


def duration(seconds: float) -> str:
    """A time with three digits and its unit."""
    return _scaled(seconds, "s")


def beside(ratio: float, low: float, high: float, other: str) -> str:
    """How fast something is beside another: their ratio, or its interval where the rounds disagree.

    Args:
        ratio: The other's time over its own, as the median of rounds.
        low: Lower end of the ratio's interval.
        high: Upper end.
        other: The other's name.
    """
    figure = f"{ratio:.3f}" if high <= DISAGREE * low else f"{low:.3f} to {high:.3f}"
    if low <= 1 <= high:
        return f"as fast as {other} ({low:.3f} to {high:.3f} x)"
    return f"{figure} x {other}" if low > 1 else f"slower than {other}: {figure} of its speed"


def energy(joules: float) -> str:
    """An energy with three digits and its unit."""
    return _scaled(joules, "J")


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def speed_unit(flops: float, moved_bytes: float, time_s: float) -> tuple[str, float]:
    """The unit of a run's speed: GB/s where memory limits it, else GFLOPS or TFLOPS; and its work in that unit.

    Args:
        flops: Floating-point operations of the run.
        moved_bytes: Bytes that it moves at the least; with neither, its work is one run.
        time_s: Seconds that it takes.
    """
    if not flops and not moved_bytes:
        return "runs/s", 1.0
    if flops < COMPUTE_BOUND * moved_bytes:
        return "GB/s", moved_bytes / 1e9
    return ("TFLOPS", flops / 1e12) if flops / time_s >= 1e12 else ("GFLOPS", flops / 1e9)


def speed(flops: float, moved_bytes: float, time_s: float) -> str:
    """The speed of a run with three digits, in the unit of `speed_unit`."""
    unit, work = speed_unit(flops, moved_bytes, time_s)
    return f"{three_digits(work / time_s)} {unit}"


def answer_speed(answer: Mapping[str, Any]) -> str:
    """The speed of an answer in JSON, from its ``tflops``, ``gbps`` and ``time_s``; "-" without a time."""
    time_s = answer.get("time_s")
    if not time_s:
        return "-"
    return speed(answer["tflops"] * 1e12 * time_s, answer["gbps"] * 1e9 * time_s, time_s)


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
