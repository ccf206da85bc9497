"""Figures of a study: what it tried, what mattered, what failed, and where its time went.

Figures are Plotly's, so that a page or a notebook can hover and zoom them; `study_images` draws the
same as PNG.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tuner.report.plots.seen import (
    Seen,
    best_by_pair,
    ended,
    importance,
    pairs_shown,
    reasons,
    seconds_by_stage,
)
from tuner.results.measurement import Outcome
from tuner.results.record import Record

#: Colours: ours, the library's, pruned trials, failures.
OURS, LIBRARY, STOPPED, FAILED = "#2a6f97", "#c1666b", "#a9b8bd", "#d9a441"


class Figures(dict[str, go.Figure]):
    """Figures by name; a shell shows their names."""

    def __repr__(self) -> str:
        return f"<figures: {', '.join(self)}>"


def figures(seen: Seen) -> Figures:
    """Figures by name; those that the study has no data for are left out."""
    draw: Mapping[str, Callable[[Seen], go.Figure | None]] = {
        "history": history, "importance": importances, "pairs": pairs, "parallel": parallel,
        "failures": failures, "time": time_spent,
    }  # fmt: skip
    found = {name: each(seen) for name, each in draw.items()}
    return Figures({name: each for name, each in found.items() if each is not None})


def _titled(figure: go.Figure, title: str, height: int = 420) -> go.Figure:
    figure.update_layout(
        title={"text": title, "x": 0.01, "font": {"size": 16}}, template="plotly_white", height=height,
        margin={"l": 70, "r": 30, "t": 60, "b": 60}, font={"family": "system-ui, sans-serif"},
        legend={"orientation": "h", "y": 1.02, "x": 1, "xanchor": "right", "yanchor": "bottom"},
    )  # fmt: skip
    return figure


def _config(record: Record) -> str:
    return " ".join(f"{name}={value}" for name, value in record.config.items())


def history(seen: Seen) -> go.Figure | None:
    """Speed by trial, the best so far, and the library."""
    if not seen.timed:
        return None
    figure = go.Figure()
    number = {each.id: at for at, each in enumerate(seen.trials, 1)}
    kinds = (
        (Outcome.MEASURED, "measured", OURS, "circle"),
        (Outcome.PRUNED, "stopped early", STOPPED, "circle-open"),
    )
    for outcome, name, colour, symbol in kinds:
        some = [each for each in seen.timed if each.measurement.outcome is outcome]
        figure.add_scatter(
            x=[number[each.id] for each in some], y=[seen.speed(each.measurement.time_s or 1) for each in some],
            mode="markers", name=name, marker={"color": colour, "symbol": symbol, "size": 7},
            text=[f"{each.kernel}<br>{_config(each)}" for each in some],
            hovertemplate="trial %{x}: %{y:.4g} " + seen.unit + "<br>%{text}<extra></extra>",
        )  # fmt: skip
    best, best_s = [], math.inf
    for each in seen.trials:
        if each.measurement.outcome is Outcome.MEASURED:
            best_s = min(best_s, each.measurement.time_s or math.inf)
        best.append(seen.speed(best_s) if best_s < math.inf else None)
    figure.add_scatter(
        x=list(range(1, len(best) + 1)), y=best, mode="lines", name="best so far", hoverinfo="skip",
        line={"color": OURS, "width": 2, "shape": "hv"},
    )  # fmt: skip
    if seen.baseline is not None and seen.baseline.measurement.time_s:
        speed = seen.speed(seen.baseline.measurement.time_s)
        figure.add_scatter(
            x=[1, max(len(best), 2)], y=[speed, speed], mode="lines", name=seen.baseline.kernel,
            line={"color": LIBRARY, "dash": "dash"}, hovertemplate=f"{speed:.4g} {seen.unit}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title="trial")
    figure.update_yaxes(title=seen.unit, rangemode="tozero")
    return _titled(figure, f"Speed by trial: {seen.title}")


def _bars(found: Mapping[str, float], shown: str, said: str, least: float = 0.0) -> go.Figure:
    """A bar for each name, the first on top.

    Args:
        found: Name -> value.
        shown: Format of a value.
        said: Title of the axis.
        least: Width of the axis at least.
    """
    names = list(found)[::-1]
    figure = go.Figure(
        go.Bar(
            x=[found[name] for name in names], y=names, orientation="h", marker_color=OURS,
            text=[shown.format(found[name]) for name in names], textposition="outside", cliponaxis=False,
            hovertemplate="%{y}: %{text}<extra></extra>",
        )
    )  # fmt: skip
    figure.update_xaxes(title=said, range=[0, max(least, 1.15 * max(found.values()))])
    figure.update_yaxes(automargin=True)
    return figure


def importances(seen: Seen) -> go.Figure | None:
    """How much each parameter explains."""
    found = importance(seen)
    if not found:
        return None
    figure = _bars(found, "{:.1%}", "share of the variance of log time that its values explain alone", 0.1)
    figure.update_xaxes(tickformat=".0%")
    return _titled(figure, f"What matters in {seen.kernel}", 140 + 32 * len(found))


def pairs(seen: Seen) -> go.Figure | None:
    """Heatmaps: the best speed for each pair of values of two parameters."""
    shown = pairs_shown(seen)
    if not shown:
        return None
    wide = min(len(shown), 3)
    tall = math.ceil(len(shown) / wide)
    figure = make_subplots(tall, wide, horizontal_spacing=0.13, vertical_spacing=0.2 / tall)
    for number, (one, other) in enumerate(shown):
        row, column = divmod(number, wide)
        figure.add_heatmap(
            x=[str(value) for value in seen.parameters[one]],
            y=[str(value) for value in seen.parameters[other]],
            z=best_by_pair(seen, one, other), coloraxis="coloraxis", row=row + 1, col=column + 1,
            hovertemplate=f"{one}=%{{x}} {other}=%{{y}}<br>best %{{z:.4g}} {seen.unit}<extra></extra>",
        )  # fmt: skip
        figure.update_xaxes(title=one, type="category", row=row + 1, col=column + 1)
        figure.update_yaxes(title=other, type="category", row=row + 1, col=column + 1)
    figure.update_layout(coloraxis={"colorscale": "Viridis", "colorbar": {"title": seen.unit}})
    return _titled(figure, f"Best speed by pairs of parameters of {seen.kernel}", 120 + 300 * tall)


def parallel(seen: Seen) -> go.Figure | None:
    """Parallel coordinates: a line for each config, coloured by its speed."""
    if not seen.parameters:
        return None
    speeds = [seen.speed(each.measurement.time_s or 1) for each in seen.of_kernel]
    axes = [
        {
            "label": name, "values": [values.index(each.config[name]) for each in seen.of_kernel],
            "tickvals": list(range(len(values))), "ticktext": [str(value) for value in values],
        }
        for name, values in seen.parameters.items()
    ]  # fmt: skip
    axes.append({"label": seen.unit, "values": speeds})
    line = {"color": speeds, "colorscale": "Viridis", "showscale": False}
    figure = go.Figure(go.Parcoords(line=line, dimensions=axes))
    figure = _titled(figure, f"Configs of {seen.kernel}; drag along an axis to select", 460)
    figure.update_layout(margin={"t": 110})
    return figure


def failures(seen: Seen) -> go.Figure | None:
    """How trials ended, and why those that failed did."""
    if not seen.trials:
        return None
    counts = {(Outcome.MEASURED.value, ""): sum(e.measurement.outcome is Outcome.MEASURED for e in seen.trials)}
    counts |= reasons(seen)
    shown = list(reversed(counts.items()))[-12:]
    colours = {Outcome.MEASURED.value: OURS, Outcome.PRUNED.value: STOPPED}
    labels = ["<br>".join(textwrap.wrap(ended(outcome, why), 34)) for (outcome, why), _ in shown]
    figure = go.Figure(
        go.Bar(
            x=[count for _, count in shown], y=labels, orientation="h", text=[str(count) for _, count in shown],
            textposition="outside", cliponaxis=False,
            marker_color=[colours.get(outcome, FAILED) for (outcome, _), _ in shown],
            customdata=[why or outcome for (outcome, why), _ in shown],
            hovertemplate="%{x} trials<br>%{customdata}<extra></extra>",
        )
    )  # fmt: skip
    figure.update_xaxes(title="trials")
    figure.update_yaxes(automargin=True)
    return _titled(figure, "How trials ended, and why", 140 + 44 * len(shown))


def time_spent(seen: Seen) -> go.Figure | None:
    """Seconds by stage, and how the stages of each trial add up."""
    spent = seconds_by_stage(seen)
    if not spent:
        return None
    figure = _bars(spent, "{:.3g} s", "seconds; compile workers and the search work beside the device")
    return _titled(figure, "Where the time went", 140 + 32 * len(spent))
