"""Figures of studies, comparisons and Pareto fronts.

They are Plotly's, so that a page or a notebook can hover and zoom them;
`tuner.report.images` makes PNGs of the same figures.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tuner.report.study_view import (
    StudyView,
    best_by_pair,
    ended,
    importance,
    pairs_shown,
    reasons,
    seconds_by_stage,
)
from tuner.results.measurement import Outcome
from tuner.results.objectives import Front
from tuner.results.record import Record
from tuner.results.units import config_text

#: Colours: ours, the library's, what was stopped or beaten, failures and reports, limits.
OURS, LIBRARY, STOPPED, FAILED, LIMIT = "#2a6f97", "#c1666b", "#a9b8bd", "#d9a441", "#5f6b6d"
#: Verdict of the second side of a comparison -> colour.
VERDICTS = {"faster": "#2a9d5c", "same": STOPPED, "slower": LIBRARY, "ambiguous": FAILED}
#: Name of an objective -> its axis, and the factor from seconds, joules or a ratio to its unit.
OBJECTIVES = {"time": ("ms", 1e3), "energy": ("mJ a run", 1e3), "error": ("rms error against float64", 1.0)}


class Figures(dict[str, go.Figure]):
    """Figures by name; a shell shows their names."""

    def __repr__(self) -> str:
        return f"<figures: {', '.join(self)}>"


def figures(study: StudyView) -> Figures:
    """Figures by name; those that the study has no data for are left out."""
    draw: Mapping[str, Callable[[StudyView], go.Figure | None]] = {
        "history": history, "importance": importances, "pairs": pairs, "parallel": parallel,
        "failures": failures, "time": time_spent,
    }  # fmt: skip
    found = {name: each(study) for name, each in draw.items()}
    return Figures({name: each for name, each in found.items() if each is not None})


def titled(figure: go.Figure, title: str, height: int = 420) -> go.Figure:
    """Gives a figure its title, its height in pixels, and the style of all."""
    figure.update_layout(
        title={"text": title, "x": 0.01, "font": {"size": 16}}, template="plotly_white", height=height,
        margin={"l": 70, "r": 30, "t": 60, "b": 60}, font={"family": "system-ui, sans-serif"},
        legend={"orientation": "h", "y": 1.02, "x": 1, "xanchor": "right", "yanchor": "bottom"},
    )  # fmt: skip
    return figure


def history(study: StudyView) -> go.Figure | None:
    """Speed by trial, the best so far, and the library."""
    if not study.timed:
        return None
    figure = go.Figure()
    number = {each.id: at for at, each in enumerate(study.trials, 1)}
    kinds = (
        (Outcome.MEASURED, "measured", OURS, "circle"),
        (Outcome.PRUNED, "stopped early", STOPPED, "circle-open"),
    )
    for outcome, name, colour, symbol in kinds:
        some = [each for each in study.timed if each.measurement.outcome is outcome]
        figure.add_scatter(
            x=[number[each.id] for each in some],
            y=[study.speed(each.measurement.time_s or 1) for each in some],
            mode="markers", name=name, marker={"color": colour, "symbol": symbol, "size": 7},
            text=[f"{each.kernel}<br>{config_text(each.config)}" for each in some],
            hovertemplate="trial %{x}: %{y:.4g} " + study.unit + "<br>%{text}<extra></extra>",
        )  # fmt: skip
    best, best_s = [], math.inf
    for each in study.trials:
        if each.measurement.outcome is Outcome.MEASURED:
            best_s = min(best_s, each.measurement.time_s or math.inf)
        best.append(study.speed(best_s) if best_s < math.inf else None)
    figure.add_scatter(
        x=list(range(1, len(best) + 1)), y=best, mode="lines", name="best so far", hoverinfo="skip",
        line={"color": OURS, "width": 2, "shape": "hv"},
    )  # fmt: skip
    if study.baseline is not None and study.baseline.measurement.time_s:
        speed = study.speed(study.baseline.measurement.time_s)
        figure.add_scatter(
            x=[1, max(len(best), 2)], y=[speed, speed], mode="lines", name=study.baseline.kernel,
            line={"color": LIBRARY, "dash": "dash"}, hovertemplate=f"{speed:.4g} {study.unit}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title="trial")
    figure.update_yaxes(title=study.unit, rangemode="tozero")
    return titled(figure, f"Speed by trial: {study.title}")


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


def importances(study: StudyView) -> go.Figure | None:
    """How much each parameter explains."""
    found = importance(study)
    if not found:
        return None
    figure = _bars(found, "{:.1%}", "share of the variance of log time that its values explain alone", 0.1)
    figure.update_xaxes(tickformat=".0%")
    return titled(figure, f"What matters in {study.kernel}", 140 + 32 * len(found))


def pairs(study: StudyView) -> go.Figure | None:
    """Heatmaps: the best speed for each pair of values of two parameters."""
    shown = pairs_shown(study)
    if not shown:
        return None
    wide = min(len(shown), 3)
    tall = math.ceil(len(shown) / wide)
    figure = make_subplots(tall, wide, horizontal_spacing=0.13, vertical_spacing=0.2 / tall)
    for number, (one, other) in enumerate(shown):
        row, column = divmod(number, wide)
        figure.add_heatmap(
            x=[str(value) for value in study.parameters[one]],
            y=[str(value) for value in study.parameters[other]],
            z=best_by_pair(study, one, other), coloraxis="coloraxis", row=row + 1, col=column + 1,
            hovertemplate=f"{one}=%{{x}} {other}=%{{y}}<br>best %{{z:.4g}} {study.unit}<extra></extra>",
        )  # fmt: skip
        figure.update_xaxes(title=one, type="category", row=row + 1, col=column + 1)
        figure.update_yaxes(title=other, type="category", row=row + 1, col=column + 1)
    figure.update_layout(coloraxis={"colorscale": "Viridis", "colorbar": {"title": study.unit}})
    return titled(figure, f"Best speed by pairs of parameters of {study.kernel}", 120 + 300 * tall)


def parallel(study: StudyView) -> go.Figure | None:
    """Parallel coordinates: a line for each config, coloured by its speed."""
    if not study.parameters:
        return None
    speeds = [study.speed(each.measurement.time_s or 1) for each in study.of_kernel]
    axes = [
        {
            "label": name, "values": [values.index(each.config[name]) for each in study.of_kernel],
            "tickvals": list(range(len(values))), "ticktext": [str(value) for value in values],
        }
        for name, values in study.parameters.items()
    ]  # fmt: skip
    axes.append({"label": study.unit, "values": speeds})
    line = {"color": speeds, "colorscale": "Viridis", "showscale": False}
    figure = go.Figure(go.Parcoords(line=line, dimensions=axes))
    figure = titled(figure, f"Configs of {study.kernel}; drag along an axis to select", 460)
    figure.update_layout(margin={"t": 110})
    return figure


def failures(study: StudyView) -> go.Figure | None:
    """How trials ended, and why those that failed did."""
    if not study.trials:
        return None
    counts = {
        (Outcome.MEASURED.value, ""): sum(e.measurement.outcome is Outcome.MEASURED for e in study.trials)
    }
    counts |= reasons(study)
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
    return titled(figure, "How trials ended, and why", 140 + 44 * len(shown))


def time_spent(study: StudyView) -> go.Figure | None:
    """Seconds by stage, and how the stages of each trial add up."""
    spent = seconds_by_stage(study)
    if not spent:
        return None
    figure = _bars(spent, "{:.3g} s", "seconds; compile workers and the search work beside the device")
    return titled(figure, "Where the time went", 140 + 32 * len(spent))


def comparison(compared: Mapping[str, Any]) -> go.Figure:
    """Ratios with their intervals, a line for each problem, those that changed most on top.

    Args:
        compared: `tuner.report.comparing.Compared.to_json`.
    """
    figure = go.Figure()
    names = [f"{row['problem']}, {row['regime']}" for row in compared["problems"]]
    for verdict, colour in VERDICTS.items():
        rows = [row for row in compared["problems"] if row["verdict"] == verdict]
        if rows:
            figure.add_scatter(
                x=[row["ratio"] for row in rows], y=[f"{row['problem']}, {row['regime']}" for row in rows],
                mode="markers", name=verdict, marker={"color": colour, "size": 9},
                error_x={
                    "type": "data", "symmetric": False, "color": colour,
                    "array": [row["high"] - row["ratio"] for row in rows],
                    "arrayminus": [row["ratio"] - row["low"] for row in rows],
                },
                customdata=[[row["one"], row["other"]] for row in rows],
                hovertemplate="%{y}<br>%{x:.3f} x<br>A: %{customdata[0]}<br>B: %{customdata[1]}<extra></extra>",
            )  # fmt: skip
    figure.add_vline(x=1, line_dash="dash", line_color=LIMIT)
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1], automargin=True)
    figure.update_xaxes(title=f"time of {compared['one']} over time of {compared['other']}", type="log")
    return titled(figure, "", 160 + 26 * len(names))


def front_figure(front: Front, champion: Record) -> go.Figure:
    """Every other objective over time: beaten configs grey, the front blue, with champion and library.

    Args:
        front: The front, with at least one point.
        champion: The study's champion.
    """
    others = range(1, len(front.objectives))
    figure = make_subplots(len(others), 1, vertical_spacing=0.12)
    for place in others:
        _front_panel(figure, front, place)
    title = f"{champion.problem} on {champion.device.name}, {champion.regime}"
    return titled(figure, title, 480 * len(others))


def _front_panel(figure: go.Figure, front: Front, place: int) -> None:
    """One objective over time, on logarithmic axes unless an error is 0."""
    on_it = [front.values(point) for point in front.points]

    def add(points: Sequence[Sequence[float]], name: str, **style: Any) -> None:
        (_, x_scale), (_, y_scale) = (OBJECTIVES[front.objectives[number]] for number in (0, place))
        figure.add_scatter(
            x=[point[0] * x_scale for point in points], y=[point[place] * y_scale for point in points],
            name=name, showlegend=place == 1, row=place, col=1, **{"mode": "markers", **style},
        )  # fmt: skip

    if front.beaten:
        add(front.beaten, "beaten", marker={"color": STOPPED, "size": 5})
    # The staircase of a front of two objectives: nothing below or left of it was found.
    stairs: dict[str, Any] = {"line": {"color": OURS, "shape": "hv"}, "mode": "lines+markers"}
    add(on_it, "front", **(stairs if len(front.objectives) == 2 else {"marker": {"color": OURS}}))
    if front.champion is not None:
        marker = {"color": FAILED, "size": 14, "symbol": "circle-open"}
        add([front.values(front.champion)], "champion: the fastest in the finals", marker=marker)
    if front.library is not None:
        marker = {"color": LIBRARY, "size": 9, "symbol": "diamond"}
        add([front.values(front.library)], front.library.kernel, marker=marker)
    for number, update in ((0, figure.update_xaxes), (place, figure.update_yaxes)):
        positive = all(point[number] > 0 for point in [*on_it, *front.beaten])
        title = OBJECTIVES[front.objectives[number]][0]
        update(title=title, type="log" if positive else "linear", row=place, col=1)
