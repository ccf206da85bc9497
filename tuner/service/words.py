"""How pages write figures, times and problems, and how a problem is a link."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup

from tuner.declare.problem import worded
from tuner.results.units import answer_speed, duration
from tuner.service.json_text import finite


def shown_duration(seconds: float | None) -> str:
    """Seconds in the unit that suits; "-" for none."""
    return "-" if seconds is None else duration(seconds)


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
    "duration": shown_duration, "speed": answer_speed, "when": when, "problem": problem, "question": question,
    "json": as_json,
}  # fmt: skip
