"""A study as one page that needs no other file: figures that can be hovered and zoomed, and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from plotly.offline import get_plotlyjs

from tuner.plots.seen import Seen, reasons
from tuner.plots.studies import figures
from tuner.results.measurement import Outcome
from tuner.results.record import Record

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; }
body { padding: 0 1rem; color: #1d2b30; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; font-size: 0.9rem; } td, th { padding: 0.25rem 0.7rem; text-align: left; }
th { border-bottom: 2px solid #c8d0d3; } td { border-bottom: 1px solid #e6ebed; vertical-align: top; }
.scroll { overflow-x: auto; } .number { text-align: right; font-variant-numeric: tabular-nums; }
code { font-size: 0.85rem; } .figure { margin: 1.2rem 0; }
"""
#: What each figure shows, above it.
SAID = {
    "history": "Each point is a trial; hover for its config. The line is the best so far.",
    "importance": "A parameter that explains much alone is worth a finer choice of values.",
    "pairs": "The best speed that was measured for each pair of values; empty where none was.",
    "parallel": "A line for each config. Drag along an axis to keep only some values; click to undo.",
    "failures": "Trials that were stopped early were slower than the best by far.",
    "time": "Compiling and the search go on beside the device: these add up to more than the wall time.",
}
#: Rows of the table of the fastest configs.
FASTEST = 10


def page(seen: Seen) -> str:
    """The page as HTML, with Plotly's script inside."""
    drawn = figures(seen)
    parts = [f'<div class="figure"><p>{SAID[name]}</p>{_div(each, name)}</div>' for name, each in drawn.items()]
    return "\n".join(
        [
            "<!doctype html>", '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(seen.title)}</title><style>{STYLE}</style>",
            f"<script>{get_plotlyjs()}</script></head><body>",
            f"<h1>{escape(seen.title)}</h1>", document(seen), *parts, "</body></html>", "",
        ]
    )  # fmt: skip


def document(seen: Seen) -> str:
    """The tables of a study."""
    fastest = sorted(seen.of_kernel, key=lambda each: each.measurement.time_s or 0.0)[:FASTEST]
    rows = [
        (
            seen.speed(each.measurement.time_s or 1), (each.measurement.time_s or 0) * 1e6,
            each.measurement.noise * 100, " ".join(f"{name}={value}" for name, value in each.config.items()),
        )
        for each in fastest
        if each.measurement.outcome is Outcome.MEASURED
    ]  # fmt: skip
    shown = [_summary(seen)]
    if rows:
        shown += [
            f"<h2>The fastest trials of {escape(seen.kernel)}</h2>",
            cells((seen.unit, "time, us", "noise, %", "config"), rows),
        ]
    failed = [(count, outcome, why) for (outcome, why), count in reasons(seen).items() if why]
    if failed:
        shown += ["<h2>What failed, and why</h2>", cells(("trials", "outcome", "reason"), failed)]
    return "\n".join(shown)


def _summary(seen: Seen) -> str:
    def told(record: Record) -> str:
        time_s = record.measurement.time_s or 0.0
        config = " ".join(f"{name}={value}" for name, value in record.config.items())
        speed = f"{seen.speed(time_s):.4g} {seen.unit}, " if time_s else ""
        named = f"{escape(record.kernel)} <code>{escape(config)}</code>" if config else escape(record.kernel)
        return f"{named}: {speed}{time_s * 1e6:.4g} us"

    lines = [f"{len(seen.trials)} trials"]
    if seen.trials:
        first = seen.trials[0]
        lines.append(f"{escape(first.device.name)}, timed {escape(first.regime)}, {first.measured_at[:10]}")
    if seen.champion is not None:
        lines.append(f"champion: {told(seen.champion)}")
    if seen.baseline is not None:
        lines.append(f"library: {told(seen.baseline)}")
    return f"<p>{'<br>'.join(lines)}</p>"


def cells(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table of HTML; numbers stand on the right."""
    head = "".join(f"<th>{escape(each)}</th>" for each in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _cell(value: Any) -> str:
    if isinstance(value, float):
        shown = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        return f'<td class="number">{shown}</td>'
    kind = ' class="number"' if isinstance(value, int) else ""
    return f"<td{kind}>{escape(str(value))}</td>"


def _div(figure: Any, name: str) -> str:
    config: Mapping[str, Any] = {"responsive": True, "displaylogo": False}
    return str(figure.to_html(full_html=False, include_plotlyjs=False, div_id=name, config=dict(config)))
