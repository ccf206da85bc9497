"""A study as one page that needs no other file: figures that can be hovered and zoomed, and tables."""

from __future__ import annotations

from html import escape

from tuner.report.plots import live_page
from tuner.report.plots.live_page import cells, drawn
from tuner.report.plots.seen import Seen, reasons
from tuner.report.plots.studies import figures
from tuner.results.measurement import Outcome
from tuner.results.record import Record

#: What each figure shows, above it.
SAID = {
    "history": "Each point is a trial; hover for its config. The line is the best so far.",
    "importance": "A parameter that explains much alone is worth a finer choice of values.",
    "pairs": "The best speed that was measured for each pair of values; empty where none was.",
    "parallel": "A line for each config. Drag along an axis to keep only some values; click to undo.",
    "failures": "Trials that were stopped early were slower than the best by far.",
    "time": "Compiling and the search go on beside the device: these add up to more than the wall time.",
}
#: Widths of figures whose labels need more room than most.
LEAST_PX = {"pairs": 800, "parallel": 560}
#: Rows of the table of the fastest configs.
FASTEST = 10


def page(seen: Seen) -> str:
    """The page as HTML, with Plotly's script inside."""
    parts = [document(seen)]
    for name, figure in figures(seen).items():
        parts += [f"<h2>{escape(figure.layout.title.text.partition(':')[0])}</h2>", f"<p>{SAID[name]}</p>"]
        parts.append(drawn(figure, name, LEAST_PX.get(name, 480)))
    return live_page.page(seen.title, parts)


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
