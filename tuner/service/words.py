"""How pages write figures, times and problems, and how a problem is a link."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup

from tuner.declare.problem import worded
from tuner.service.answer_forms import finite

_UNITS = (("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9))


def duration(seconds: float | None) -> str:
    """Seconds with four digits, in the unit that suits."""
    if seconds is None:
        return "-"
    for unit, scale in _UNITS:
        if seconds * scale >= 1:
            return f"{seconds * scale:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"


def speed(told: Mapping[str, Any]) -> str:
    """TFLOPS, or GB/s where the problem hardly computes."""
    tflops, gbps = told.get("tflops"), told.get("gbps")
    if tflops and (not gbps or tflops * 1e3 > gbps):
        return f"{tflops:.2f} TFLOPS" if tflops >= 0.1 else f"{tflops * 1e3:.2f} GFLOPS"
    return f"{gbps:.1f} GB/s" if gbps else "-"


def when(text: str | None) -> Markup:
    """A time to the minute, UTC, which says it in full on request."""
    if not text:
        return Markup("-")
    try:
        moment = datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return Markup("{}").format(text[:40])
    shown = f"{moment:%Y-%m-%d %H:%M}"
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(text, text[:19], shown)


def problem(told: Mapping[str, Any]) -> str:
    """A problem in a few words."""
    sizes = " x ".join(str(size) for size in told["shape"].values())
    layout, precision = told.get("layout", ""), told.get("precision", "ieee")
    return worded(told["operation"], sizes, told["dtype"], layout, precision, told.get("epilogue", ""))


def question(told: Mapping[str, Any]) -> str:
    """A problem on a device as the query of a link."""
    device = told["device"]
    return urlencode(
        {
            "operation": told["operation"],
            "dims": ",".join(f"{name}={size}" for name, size in told["shape"].items()),
            "dtype": told["dtype"], "layout": told.get("layout", ""),
            "precision": told.get("precision", "ieee"), "regime": told.get("regime", "cold"),
            "device": device["name"] if isinstance(device, Mapping) else device,
            **({"epilogue": told["epilogue"]} if told.get("epilogue") else {}),
        }
    )  # fmt: skip


def as_json(data: Any) -> Markup:
    """JSON that may stand in a page: nothing in it ends the element around it."""
    text = json.dumps(finite(data), separators=(",", ":"))
    for letter, escaped in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        text = text.replace(letter, escaped)
    return Markup(text)


#: Name in templates -> filter.
FILTERS = {
    "duration": duration, "speed": speed, "when": when, "problem": problem, "question": question,
    "json": as_json,
}  # fmt: skip
