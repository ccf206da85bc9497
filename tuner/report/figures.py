"""Figures of studies, comparisons and Pareto fronts.

They are Plotly's, so that a page or a notebook can hover and zoom them;
`tuner.report.images` makes PNGs of the same figures.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
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
from tuner.results.record import Champion, Record
from tuner.results.units import config_text

#: Colours: ours, the library's, what was stopped or beaten, failures and reports, limits.
OURS, LIBRARY, STOPPED, FAILED, LIMIT = "#2a6f97", "#c1666b", "#a9b8bd", "#d9a441", "#5f6b6d"
#: Verdict of the second side of a comparison -> colour.
VERDICTS = {"faster": "#2a9d5c", "same": STOPPED, "slower": LIBRARY, "ambiguous": FAILED}
#: Name of an objective -> its axis, and the factor from seconds, joules or a ratio to its unit.
OBJECTIVES = {"time": ("ms", 1e3), "energy": ("mJ a run", 1e3), "error": ("rms error against float64", 1.0)}


class NamedFigures(dict[str, go.Figure]):
    """Figures by name; a shell shows their names."""

    def __repr__(self) -> str:
        return f"<figures: {', '.join(self)}>"


def figures(study: StudyView) -> NamedFigures:
    """Figures by name; those that the study has no data for are left out."""
    draw = {
        "history": history, "importance": importances, "pairs": pairs, "parallel": parallel,
        "failures": failures, "time": time_spent,
    }  # fmt: skip
    drawn = {name: function(study) for name, function in draw.items()}
    return NamedFigures({name: figure for name, figure in drawn.items() if figure is not None})


def titled(figure: go.Figure, title: str, height: int = 420) -> go.Figure:
    """Gives a figure its title, its height in pixels, and the style of all."""
    figure.update_layout(
        title={"text": title, "x": 0.01, "font": {"size": 16}}, template="plotly_white", height=height,
        margin={"l": 70, "r": 30, "t": 60, "b": 60}, font={"family": "system-ui, sans-serif"},
        legend={"orientation": "h", "y": 1.02, "x": 1, "xanchor": "right", "yanchor": "bottom"},
    )  # fmt: skip
    return figure


def points(
    figure: go.Figure, x: Sequence[Any], y: Sequence[Any], name: str, colour: str, mode: str = "markers",
    line: Mapping[str, Any] | None = None, marker: Mapping[str, Any] | None = None, **more: Any,
) -> None:  # fmt: skip
    """Adds points or a line of one colour.

    Args:
        figure: Gets them.
        x: Of each point.
        y: Of each point.
        name: In the legend.
        colour: Of points and line.
        mode: As Plotly has it.
        line: Further properties of the line.
        marker: Further properties of the points.
        more: Further properties of the trace.
    """
    styles: dict[str, Any] = {"marker": {"color": colour, **(marker or {})}}
    if "lines" in mode:
        styles["line"] = {"color": colour, **(line or {})}
    figure.add_scatter(x=x, y=y, name=name, mode=mode, **styles, **more)


def bars(
    names: Sequence[str], values: Sequence[float], texts: Sequence[str], axis: str, *, least: float = 0.0,
    **more: Any,
) -> go.Figure:  # fmt: skip
    """A bar for each name, the first on top.

    Args:
        names: Of the bars.
        values: Their lengths.
        texts: What stands beside each.
        axis: Title of the axis.
        least: Width of the axis at least.
        more: Further properties of the bars, each in the order of the names.
    """
    more = {name: value[::-1] if isinstance(value, list) else value for name, value in more.items()}
    figure = go.Figure(
        go.Bar(
            x=values[::-1], y=names[::-1], text=texts[::-1], orientation="h", textposition="outside",
            cliponaxis=False, **{"marker_color": OURS, "hovertemplate": "%{y}: %{text}<extra></extra>"} | more,
        )
    )  # fmt: skip
    figure.update_xaxes(title=axis, range=[0, max(least, 1.15 * max(values))])
    figure.update_yaxes(automargin=True)
    return figure


def history(study: StudyView) -> go.Figure | None:
    """Speed by trial, the best so far, and the library."""
    if not study.timed:
        return None
    figure = go.Figure()
    number = {trial.id: at for at, trial in enumerate(study.trials, 1)}
    kinds = (
        (Outcome.MEASURED, "measured", OURS, "circle"),
        (Outcome.PRUNED, "stopped early", STOPPED, "circle-open"),
    )
    for outcome, name, colour, symbol in kinds:
        some = [trial for trial in study.timed if trial.measurement.outcome is outcome]
        points(
            figure, [number[trial.id] for trial in some],
            [study.speed(trial.measurement.time_s or 1) for trial in some], name, colour,
            marker={"symbol": symbol, "size": 7},
            text=[f"{trial.kernel}<br>{config_text(trial.config)}" for trial in some],
            hovertemplate="trial %{x}: %{y:.4g} " + study.unit + "<br>%{text}<extra></extra>",
        )  # fmt: skip
    best, best_s = [], math.inf
    for trial in study.trials:
        if trial.measurement.outcome is Outcome.MEASURED:
            best_s = min(best_s, trial.measurement.time_s or math.inf)
        best.append(study.speed(best_s) if best_s < math.inf else None)
    numbers, line = list(range(1, len(best) + 1)), {"width": 2, "shape": "hv"}
    points(figure, numbers, best, "best so far", OURS, "lines", line, hoverinfo="skip")
    if study.baseline is not None and study.baseline.measurement.time_s:
        speed = study.speed(study.baseline.measurement.time_s)
        hover = f"{speed:.4g} {study.unit}<extra></extra>"
        ends = [1, max(len(best), 2)]
        name = study.baseline.kernel
        points(figure, ends, [speed] * 2, name, LIBRARY, "lines", {"dash": "dash"}, hovertemplate=hover)
    figure.update_xaxes(title="trial")
    figure.update_yaxes(title=study.unit, rangemode="tozero")
    return titled(figure, f"Speed by trial: {study.title}")


def importances(study: StudyView) -> go.Figure | None:
    """How much each parameter explains."""
    shares = importance(study)
    if not shares:
        return None
    axis = "share of the variance of log time that its values explain alone"
    texts = [f"{share:.1%}" for share in shares.values()]
    figure = bars(list(shares), list(shares.values()), texts, axis, least=0.1)
    figure.update_xaxes(tickformat=".0%")
    return titled(figure, f"What matters in {study.kernel}", 140 + 32 * len(shares))


def pairs(study: StudyView) -> go.Figure | None:
    """Heatmaps: the best speed for each pair of values of two parameters."""
    shown = pairs_shown(study)
    if not shown:
        return None
    wide = min(len(shown), 3)
    tall = math.ceil(len(shown) / wide)
    figure = make_subplots(tall, wide, horizontal_spacing=0.13, vertical_spacing=0.2 / tall)
    for number, (one, other) in enumerate(shown):
        place = {"row": number // wide + 1, "col": number % wide + 1}
        figure.add_heatmap(
            x=[str(value) for value in study.parameters[one]],
            y=[str(value) for value in study.parameters[other]],
            z=best_by_pair(study, one, other), coloraxis="coloraxis", **place,
            hovertemplate=f"{one}=%{{x}} {other}=%{{y}}<br>best %{{z:.4g}} {study.unit}<extra></extra>",
        )  # fmt: skip
        figure.update_xaxes(title=one, type="category", **place)
        figure.update_yaxes(title=other, type="category", **place)
    figure.update_layout(coloraxis={"colorscale": "Viridis", "colorbar": {"title": study.unit}})
    return titled(figure, f"Best speed by pairs of parameters of {study.kernel}", 120 + 300 * tall)


def parallel(study: StudyView) -> go.Figure | None:
    """Parallel coordinates: a line for each config, coloured by its speed."""
    if not study.parameters:
        return None
    speeds = [study.speed(trial.measurement.time_s or 1) for trial in study.of_kernel]
    axes = [
        {
            "label": name, "values": [values.index(trial.config[name]) for trial in study.of_kernel],
            "tickvals": list(range(len(values))), "ticktext": [str(value) for value in values],
        }
        for name, values in study.parameters.items()
    ]  # fmt: skip
    axes.append({"label": study.unit, "values": speeds})
    line = {"color": speeds, "colorscale": "Viridis", "showscale": False}
    figure = go.Figure(go.Parcoords(line=line, dimensions=axes))
    titled(figure, f"Configs of {study.kernel}; drag along an axis to select", 460)
    return figure.update_layout(margin={"t": 110})


def failures(study: StudyView) -> go.Figure | None:
    """How trials ended, and why those that failed did."""
    if not study.trials:
        return None
    measured = sum(trial.measurement.outcome is Outcome.MEASURED for trial in study.trials)
    counts = {(Outcome.MEASURED.value, ""): measured} | reasons(study)
    shown, numbers = list(counts)[:12], list(counts.values())[:12]
    colours = {Outcome.MEASURED.value: OURS, Outcome.PRUNED.value: STOPPED}
    figure = bars(
        ["<br>".join(textwrap.wrap(ended(outcome, why), 34)) for outcome, why in shown], numbers,
        [str(number) for number in numbers], "trials",
        marker_color=[colours.get(outcome, FAILED) for outcome, _ in shown],
        customdata=[why or outcome for outcome, why in shown],
        hovertemplate="%{x} trials<br>%{customdata}<extra></extra>",
    )  # fmt: skip
    return titled(figure, "How trials ended, and why", 140 + 44 * len(shown))


def time_spent(study: StudyView) -> go.Figure | None:
    """Seconds by stage, and how the stages of each trial add up."""
    spent = seconds_by_stage(study)
    if not spent:
        return None
    axis = "seconds; compile workers and the search work beside the device"
    texts = [f"{seconds:.3g} s" for seconds in spent.values()]
    figure = bars(list(spent), list(spent.values()), texts, axis)
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
            points(
                figure, [row["ratio"] for row in rows],
                [f"{row['problem']}, {row['regime']}" for row in rows], verdict, colour, marker={"size": 9},
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


def roofline(champions: Sequence[Champion], limits: Mapping[str, float]) -> go.Figure:
    """Champions by arithmetic intensity, below the limits of their device.

    Args:
        champions: At least one.
        limits: ``gbps`` and ``tflops`` as measured; where one is missing, the best of the champions stands in.
    """
    figure, places = go.Figure(), {champion.id: _place(champion.record) for champion in champions}
    gbps = limits.get("gbps") or max(champion.record.gbps for champion in champions)
    tflops = limits.get("tflops") or max(champion.record.tflops for champion in champions)
    ridge, intensities = tflops * 1e3 / gbps, [intensity for intensity, _ in places.values()]
    figure.add_scatter(
        x=[min(intensities) / 2, ridge, max(*intensities, ridge) * 2],
        y=[min(intensities) / 2 * gbps / 1e3, tflops, tflops], mode="lines",
        name="measured limits" if len(limits) == 2 else "best seen here",
        line={"color": LIMIT, "dash": "solid" if len(limits) == 2 else "dash"},
        hovertemplate=f"{gbps:.4g} GB/s, {tflops:.4g} TFLOPS<extra></extra>",
    )  # fmt: skip
    for operation in dict.fromkeys(champion.record.problem.operation for champion in champions):
        some = [champion for champion in champions if champion.record.problem.operation == operation]
        figure.add_scatter(
            x=[places[champion.id][0] for champion in some], y=[places[champion.id][1] for champion in some],
            mode="markers", name=operation, marker={"size": 8},
            text=[f"{c.record.problem}<br>{c.record.kernel}, {c.speedup or 0:.3f} x library" for c in some],
            hovertemplate="%{y:.4g} TFLOPS at %{x:.3g} flop/byte<br>%{text}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title="flops per byte that must move", type="log")
    figure.update_yaxes(title="TFLOPS", type="log")
    return titled(figure, "Roofline", 480)


def _place(record: Record) -> tuple[float, float]:
    """Flops per byte, and TFLOPS."""
    return record.work["flops"] / max(record.work["bytes"], 1.0), record.tflops


def front_figure(front: Front, champion: Record) -> go.Figure:
    """Every other objective over time: beaten configs grey, the front blue, with champion and library.

    Args:
        front: The front, with at least one point.
        champion: The study's champion.
    """
    others = range(1, len(front.objectives))
    figure = make_subplots(len(others), 1, vertical_spacing=0.12)
    on_it = [front.values(point) for point in front.points]
    # The staircase of a front of two objectives: nothing below or left of it was found.
    stairs = {"mode": "lines+markers", "line": {"shape": "hv"}} if len(others) == 1 else {}
    layers: list[tuple[str, Sequence[Sequence[float]], str, dict[str, Any]]] = [
        ("beaten", front.beaten, STOPPED, {"marker": {"size": 5}}), ("front", on_it, OURS, stairs),
    ]  # fmt: skip
    if front.champion is not None:
        ring = {"marker": {"size": 14, "symbol": "circle-open"}}
        layers.append(("champion: the fastest in the finals", [front.values(front.champion)], FAILED, ring))
    if front.library is not None:
        diamond = {"marker": {"size": 9, "symbol": "diamond"}}
        layers.append((front.library.kernel, [front.values(front.library)], LIBRARY, diamond))
    for place in others:
        axes = [(at, *OBJECTIVES[front.objectives[at]]) for at in (0, place)]
        for name, values, colour, style in layers:
            if values:
                x, y = ([value[at] * scale for value in values] for at, _, scale in axes)
                points(figure, x, y, name, colour, showlegend=place == 1, row=place, col=1, **style)
        for (at, title, _), update in zip(axes, (figure.update_xaxes, figure.update_yaxes), strict=True):
            # Axes are logarithmic unless an error is 0.
            positive = all(value[at] > 0 for value in [*on_it, *front.beaten])
            update(title=title, type="log" if positive else "linear", row=place, col=1)
    return titled(figure, f"{champion.problem} on {champion.device.name}, {champion.regime}", 480 * len(others))
