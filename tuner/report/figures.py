"""Figures of studies, comparisons, Pareto fronts and ladders.

They are Plotly's, so that a page or a notebook can hover and zoom them;
`tuner.report.images` makes PNGs of the same figures.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tuner.declare.problem import IEEE, Problem
from tuner.report.ladder_result import Ladder, SweepPoint
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
from tuner.results.units import config_text, is_compute_bound

#: Colours: ours, the library's, what was stopped or beaten, failures and reports, limits.
OURS, LIBRARY, STOPPED, FAILED, LIMIT = "#2a6f97", "#c1666b", "#a9b8bd", "#d9a441", "#5f6b6d"
#: Verdict of the second side of a comparison -> colour.
VERDICTS = {"faster": "#2a9d5c", "same": STOPPED, "slower": LIBRARY, "ambiguous": FAILED}
#: Name of an objective -> its axis, and the factor from seconds, joules or a ratio to its unit.
OBJECTIVES = {"time": ("ms", 1e3), "energy": ("mJ a run", 1e3), "error": ("rms error against float64", 1.0)}
#: Colours of the lines of a sweep, from small to large.
LINES = ("#a9d6e5", "#61a5c2", "#2a6f97", "#013a63", "#001b2e")
#: Figures of a report by which steps compare, and the power of them that grows with speed.
RATES = {"ms": -1, "gbps": 1, "gflops": 1, "of_library": 1}

Rows = Sequence[Mapping[str, Any]]


class NamedFigures(dict[str, go.Figure]):
    """Figures by name; a shell shows their names."""

    def __repr__(self) -> str:
        return f"<figures: {', '.join(self)}>"


def titled(figure: go.Figure, title: str, height: int = 420) -> go.Figure:
    """Gives a figure its title, its height in pixels, and the style of all."""
    figure.update_layout(
        title={"text": title, "x": 0.01, "font": {"size": 16}}, template="plotly_white", height=height,
        margin={"l": 70, "r": 30, "t": 60, "b": 60}, font={"family": "system-ui, sans-serif"},
        legend={"orientation": "h", "y": 1.02, "x": 1, "xanchor": "right", "yanchor": "bottom"},
    )  # fmt: skip
    return figure


def bars(
    names: Sequence[str], values: Sequence[float], texts: Sequence[str], axis: str, least: float = 0.0,
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


# ---- of a study


def figures(study: StudyView) -> NamedFigures:
    """Figures by name; those that the study has no data for are left out."""
    draw: dict[str, tuple[Callable[[StudyView], go.Figure], object]] = {
        "history": (_history, study.timed), "importance": (_importance, importance(study)),
        "pairs": (_pairs, pairs_shown(study)), "parallel": (_parallel, study.parameters),
        "failures": (_failures, study.trials), "time": (_time_spent, seconds_by_stage(study)),
    }  # fmt: skip
    return NamedFigures({name: function(study) for name, (function, data) in draw.items() if data})


def _history(study: StudyView) -> go.Figure:
    """Speed by trial, the best so far, and the library."""
    figure = go.Figure()
    number = {trial.id: at for at, trial in enumerate(study.trials, 1)}
    for outcome, name, colour, symbol in (
        (Outcome.MEASURED, "measured", OURS, "circle"),
        (Outcome.PRUNED, "stopped early", STOPPED, "circle-open"),
    ):
        trials = [trial for trial in study.timed if trial.measurement.outcome is outcome]
        figure.add_scatter(
            x=[number[trial.id] for trial in trials], y=[study.speed(trial) for trial in trials], name=name,
            mode="markers", marker={"color": colour, "symbol": symbol, "size": 7},
            text=[f"{trial.kernel}<br>{config_text(trial.config)}" for trial in trials],
            hovertemplate="trial %{x}: %{y:.4g} " + study.unit + "<br>%{text}<extra></extra>",
        )  # fmt: skip
    speeds = [
        study.speed(trial) if trial.measurement.outcome is Outcome.MEASURED else 0.0 for trial in study.trials
    ]
    figure.add_scatter(
        x=[*range(1, len(speeds) + 1)], y=[best or None for best in itertools.accumulate(speeds, max)],
        name="best so far", mode="lines", line={"color": OURS, "width": 2, "shape": "hv"}, hoverinfo="skip",
    )  # fmt: skip
    if study.baseline is not None and study.baseline.measurement.time_s:
        speed = study.speed(study.baseline)
        figure.add_scatter(
            x=[1, max(len(speeds), 2)], y=[speed] * 2, name=study.baseline.kernel, mode="lines",
            line={"color": LIBRARY, "dash": "dash"}, hovertemplate=f"{speed:.4g} {study.unit}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title="trial")
    figure.update_yaxes(title=study.unit, rangemode="tozero")
    return titled(figure, f"Speed by trial: {study.title}")


def _importance(study: StudyView) -> go.Figure:
    """How much each parameter explains."""
    shares = importance(study)
    axis = "share of the variance of log time that its values explain alone"
    texts = [f"{share:.1%}" for share in shares.values()]
    figure = bars([*shares], [*shares.values()], texts, axis, least=0.1)
    figure.update_xaxes(tickformat=".0%")
    return titled(figure, f"What matters in {study.kernel}", 140 + 32 * len(shares))


def _pairs(study: StudyView) -> go.Figure:
    """Heatmaps: the best speed for each pair of values of two parameters."""
    shown = pairs_shown(study)
    wide = min(len(shown), 3)
    tall = math.ceil(len(shown) / wide)
    figure = make_subplots(tall, wide, horizontal_spacing=0.13, vertical_spacing=0.2 / tall)
    for number, (one, other) in enumerate(shown):
        place = {"row": number // wide + 1, "col": number % wide + 1}
        columns, rows = ([str(value) for value in study.parameters[name]] for name in (one, other))
        figure.add_heatmap(
            x=columns, y=rows, z=best_by_pair(study, one, other), coloraxis="coloraxis", **place,
            hovertemplate=f"{one}=%{{x}} {other}=%{{y}}<br>best %{{z:.4g}} {study.unit}<extra></extra>",
        )  # fmt: skip
        figure.update_xaxes(title=one, type="category", **place)
        figure.update_yaxes(title=other, type="category", **place)
    figure.update_layout(coloraxis={"colorscale": "Viridis", "colorbar": {"title": study.unit}})
    return titled(figure, f"Best speed by pairs of parameters of {study.kernel}", 120 + 300 * tall)


def _parallel(study: StudyView) -> go.Figure:
    """Parallel coordinates: a line for each config, coloured by its speed."""
    speeds = [study.speed(trial) for trial in study.of_kernel]
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


def _failures(study: StudyView) -> go.Figure:
    """How trials ended, and why those that failed did."""
    measured = sum(trial.measurement.outcome is Outcome.MEASURED for trial in study.trials)
    counts = {(Outcome.MEASURED.value, ""): measured} | reasons(study)
    shown, numbers = [*counts][:12], [*counts.values()][:12]
    colours = {Outcome.MEASURED.value: OURS, Outcome.PRUNED.value: STOPPED}
    figure = bars(
        ["<br>".join(textwrap.wrap(ended(*end), 34)) for end in shown], numbers, [*map(str, numbers)], "trials",
        marker_color=[colours.get(outcome, FAILED) for outcome, _ in shown],
        customdata=[why or outcome for outcome, why in shown],
        hovertemplate="%{x} trials<br>%{customdata}<extra></extra>",
    )  # fmt: skip
    return titled(figure, "How trials ended, and why", 140 + 44 * len(shown))


def _time_spent(study: StudyView) -> go.Figure:
    """Seconds by stage, and how the stages of each trial add up."""
    spent = seconds_by_stage(study)
    axis = "seconds; compile workers and the search work beside the device"
    texts = [f"{seconds:.3g} s" for seconds in spent.values()]
    figure = bars([*spent], [*spent.values()], texts, axis)
    return titled(figure, "Where the time went", 140 + 32 * len(spent))


# ---- of several problems


def comparison(compared: Mapping[str, Any]) -> go.Figure:
    """Ratios with their intervals, a line for each problem, those that changed most on top.

    Args:
        compared: `tuner.report.comparing.Compared.to_json`.
    """
    figure = go.Figure()
    for verdict, colour in VERDICTS.items():
        rows = [row for row in compared["problems"] if row["verdict"] == verdict]
        if rows:
            figure.add_scatter(
                x=[row["ratio"] for row in rows], y=[f"{row['problem']}, {row['regime']}" for row in rows],
                name=verdict, mode="markers", marker={"size": 9, "color": colour},
                error_x={
                    "type": "data", "symmetric": False, "color": colour,
                    "array": [row["high"] - row["ratio"] for row in rows],
                    "arrayminus": [row["ratio"] - row["low"] for row in rows],
                },
                customdata=[[row["one"], row["other"]] for row in rows],
                hovertemplate="%{y}<br>%{x:.3f} x<br>A: %{customdata[0]}<br>B: %{customdata[1]}<extra></extra>",
            )  # fmt: skip
    figure.add_vline(x=1, line_dash="dash", line_color=LIMIT)
    names = [f"{row['problem']}, {row['regime']}" for row in reversed(compared["problems"])]
    figure.update_yaxes(categoryorder="array", categoryarray=names, automargin=True)
    figure.update_xaxes(title=f"time of {compared['one']} over time of {compared['other']}", type="log")
    return titled(figure, "", 160 + 26 * len(names))


def _roof(intensities: Sequence[float], gbps: float, tflops: float, **style: Any) -> go.Figure:
    """A figure of speed over flops per byte, with the line that memory and arithmetic allow."""
    ridge = tflops * 1e3 / gbps
    ends = [min(*intensities, ridge) / 4, ridge, max(*intensities, ridge) * 4]
    speeds = [min(intensity * gbps / 1e3, tflops) for intensity in ends]
    figure = go.Figure().add_scatter(x=ends, y=speeds, mode="lines", **style)
    figure.update_xaxes(title="flops per byte that must move", type="log")
    return figure.update_yaxes(title="TFLOPS", type="log")


def roofline(champions: Sequence[Champion], limits: Mapping[str, float]) -> go.Figure:
    """Champions by arithmetic intensity, below the limits of their device.

    Args:
        champions: At least one.
        limits: ``gbps`` and ``tflops`` as measured; where one is missing, the best of the champions stands in.
    """
    by_operation: dict[str, list[Champion]] = {}
    for champion in champions:
        by_operation.setdefault(champion.record.problem.operation, []).append(champion)
    gbps = limits.get("gbps") or max(champion.record.gbps for champion in champions)
    tflops = limits.get("tflops") or max(champion.record.tflops for champion in champions)
    measured = len(limits) == 2
    figure = _roof(
        [_intensity(champion.record.work) for champion in champions], gbps, tflops,
        name="measured limits" if measured else "best seen here",
        line={"color": LIMIT, "dash": "solid" if measured else "dash"},
        hovertemplate=f"{gbps:.4g} GB/s, {tflops:.4g} TFLOPS<extra></extra>",
    )  # fmt: skip
    for operation, some in by_operation.items():
        figure.add_scatter(
            x=[_intensity(c.record.work) for c in some], y=[c.record.tflops for c in some], name=operation,
            mode="markers", marker={"size": 8},
            text=[f"{c.record.problem}<br>{c.record.kernel}, {c.speedup or 0:.3f} x library" for c in some],
            hovertemplate="%{y:.4g} TFLOPS at %{x:.3g} flop/byte<br>%{text}<extra></extra>",
        )  # fmt: skip
    return titled(figure, "Roofline", 480)


def _intensity(work: Mapping[str, float]) -> float:
    """Flops per byte."""
    return work["flops"] / max(work["bytes"], 1.0)


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
    stairs = {"mode": "lines+markers", "line": {"shape": "hv", "color": OURS}} if len(others) == 1 else {}
    layers: list[tuple[str, Sequence[Sequence[float]], dict[str, Any], dict[str, Any]]] = [
        ("beaten", front.beaten, {"size": 5, "color": STOPPED}, {}), ("front", on_it, {"color": OURS}, stairs),
    ]  # fmt: skip
    if front.champion is not None:
        ring = {"size": 14, "symbol": "circle-open", "color": FAILED}
        layers.append(("champion: the fastest in the finals", [front.values(front.champion)], ring, {}))
    if front.library is not None:
        diamond = {"size": 9, "symbol": "diamond", "color": LIBRARY}
        layers.append((front.library.kernel, [front.values(front.library)], diamond, {}))
    for place in others:
        axes = [(at, *OBJECTIVES[front.objectives[at]]) for at in (0, place)]
        for name, values, marker, style in layers:
            if values:
                x, y = ([value[at] * scale for value in values] for at, _, scale in axes)
                figure.add_scatter(
                    x=x, y=y, name=name, marker=marker, showlegend=place == 1, row=place, col=1,
                    **{"mode": "markers", **style},
                )  # fmt: skip
        for (at, title, _), update in zip(axes, (figure.update_xaxes, figure.update_yaxes), strict=True):
            # Axes are logarithmic unless an error is 0.
            positive = all(value[at] > 0 for value in [*on_it, *front.beaten])
            update(title=title, type="log" if positive else "linear", row=place, col=1)
    return titled(figure, f"{champion.problem} on {champion.device.name}, {champion.regime}", 480 * len(others))


# ---- of a ladder


def ladder_figures(ladder: Ladder) -> dict[str, go.Figure]:
    """Figures by file name (without suffix), in the order of the page."""
    drawn: dict[str, go.Figure] = {}
    for problem in ladder.problems:
        rows = [row for row in ladder.rows(problem) if row["time_s"]]
        name = "-".join([*(str(size) for _, size in problem.shape), problem.layout]).strip("-")
        if rows:
            drawn |= {f"{kind}-{name}": figure for kind, figure in _of_problem(ladder, problem, rows)}
    timed = [point for point in ladder.sweeps if point.measurement.time_s]
    for _, group in itertools.groupby(timed, key=lambda point: id(point.sweep)):
        points = list(group)
        sweep = points[0].sweep
        drawn[f"sweep-{sweep.kernel.name}-{sweep.parameter}".lower()] = _sweep(points)
    return drawn


def _of_problem(ladder: Ladder, problem: Problem, rows: Rows) -> Iterator[tuple[str, go.Figure]]:
    yield "ladder", _steps(ladder, problem, rows)
    if problem.precision != IEEE:
        yield "errors", _errors(ladder, problem, rows)
    if len(comparable(rows)) > 1:
        yield "beside", _beside(ladder, problem, rows)
    if problem.work.flops and ladder.limits.tflops:
        yield "roofline", _steps_below_roof(ladder, problem, rows)


def _steps(ladder: Ladder, problem: Problem, rows: Rows) -> go.Figure:
    """Bars from the first step, at the top, to the last, with libraries and limit as lines."""
    unit, amount = "GB/s", problem.work.bytes * 1e-9
    if is_compute_bound(problem.work.flops, problem.work.bytes):
        unit, scale = ("TFLOPS", 1e-12) if max(row["tflops"] for row in rows) >= 1 else ("GFLOPS", 1e-9)
        amount = problem.work.flops * scale
    lines = [
        (library.name, amount / time_s, LIBRARY, "solid" if library.main else "dot")
        for library, time_s in ladder.libraries_of(problem)
    ]
    if least_s := ladder.limits.least_s(problem):
        lines.append(("measured limit", amount / least_s, LIMIT, "dash"))
    speeds = [amount / row["time_s"] for row in rows]
    gains = ["", *(f"   {row['step_speedup']:.2f} x" if row["step_speedup"] else "" for row in rows[1:])]
    figure = bars(
        [row["label"] for row in rows], speeds,
        [f"{speed:.3g}{gain}" for speed, gain in zip(speeds, gains, strict=True)],
        f"{unit}; beside each bar its speed, and how many times faster than the step before",
        least=1.16 * max((speed for _, speed, _, _ in lines), default=0.0), name="steps", showlegend=False,
    )  # fmt: skip
    for name, speed, colour, dash in lines:
        label = f"{name} {speed:.3g} {unit}"
        figure.add_vline(x=speed, line_color=colour, line_dash=dash, name=label, showlegend=True)
    figure.update_layout(showlegend=True)
    return titled(figure, f"The steps of {problem} on {ladder.device.name}", 200 + 40 * len(rows))


def _labelled(figure: go.Figure, places: Sequence[tuple[str, float, float, str]]) -> None:
    """Adds points with their names beside them, by turns above and below: (name, x, y, colour)."""
    for number, (name, x, y, colour) in enumerate(places):
        figure.add_scatter(
            x=[x], y=[y], name=name, text=[name], mode="markers+text", marker={"color": colour},
            textposition="bottom right" if number % 2 else "top right", showlegend=False,
        )  # fmt: skip


def _errors(ladder: Ladder, problem: Problem, rows: Rows) -> go.Figure:
    """A point for each step, and the library: its error over its speed."""
    places = [(row["label"], row["tflops"], row["error"]["rms_rel"], OURS) for row in rows if row["error"]]
    for library, time_s in ladder.libraries_of(problem):
        if (error := library.measurement.error) is not None:
            places.append((library.name, problem.work.flops / time_s / 1e12, error.rms_rel, LIBRARY))
    figure = go.Figure()
    _labelled(figure, places)
    figure.update_xaxes(title="TFLOPS; to the right is faster")
    figure.update_yaxes(title="error, root mean square over the result's; further down is exact", type="log")
    return titled(figure, f"Error beside speed of {problem} on {ladder.device.name}")


def _steps_below_roof(ladder: Ladder, problem: Problem, rows: Rows) -> go.Figure:
    gbps, tflops = ladder.limits.bandwidth_gbps(problem), ladder.limits.tflops
    intensity = problem.work.flops / problem.work.bytes
    name = f"memory {gbps:.0f} GB/s, multiply-adds {tflops:.3g} TFLOPS"
    figure = _roof([intensity], gbps, tflops, name=name, line={"color": LIMIT})
    places = [(row["label"], intensity, row["tflops"], OURS) for row in rows]
    for library, time_s in ladder.libraries_of(problem):
        if library.main:
            places.append((library.name, intensity, problem.work.flops / time_s * 1e-12, LIBRARY))
    _labelled(figure, places)
    return titled(figure, f"Roofline of {ladder.device.name} with the steps of {problem}")


def comparable(rows: Rows) -> list[tuple[Mapping[str, Any], float]]:
    """Rows of one report, shape and kind of figure, with its speeds in any unit; of the kind that most have."""
    by_kind: dict[tuple[Any, ...], list[tuple[Mapping[str, Any], float]]] = {}
    for row in rows:
        published = row["published"] or {}
        for name in [name for name in RATES if name in published]:
            key = (published["source"], published["hardware"], tuple(published["shape"]), name)
            by_kind.setdefault(key, []).append((row, float(published[name]) ** RATES[name]))
    return max(by_kind.values(), key=len, default=[])


def _beside(ladder: Ladder, problem: Problem, rows: Rows) -> go.Figure:
    """Speed-ups over the report's first step, ours and the report's."""
    compared, figure = comparable(rows), go.Figure()
    first, first_speed = compared[0]
    ours = [first["time_s"] / row["time_s"] for row, _ in compared]
    theirs = [speed / first_speed for _, speed in compared]
    for name, ratios, colour in (
        (f"here, {ladder.device.name}", ours, OURS),
        (f"report, {first['published']['hardware']}", theirs, FAILED),
    ):
        figure.add_bar(
            x=[row["label"] for row, _ in compared], y=ratios, name=name, marker_color=colour,
            text=[f"{ratio:.3g}" for ratio in ratios], textposition="outside",
        )  # fmt: skip
    far_apart = max(*ours, *theirs) > 20 * min(*ours, *theirs)
    figure.update_yaxes(title=f"times as fast as {first['label']}", type="log" if far_apart else "linear")
    return titled(figure, f"What each step buys: {problem}, over the first step, here and in the report")


def _sweep(points: Sequence[SweepPoint]) -> go.Figure:
    """Time over the value, with a line for each problem; the report's dashed."""
    sweep, figure = points[0].sweep, go.Figure()
    problems = list(dict.fromkeys(point.problem for point in points))
    for number, problem in enumerate(problems):
        sizes = tuple(size for _, size in problem.shape)
        label = " x ".join(map(str, sizes))
        ours = {p.value: (p.measurement.time_s or 0.0) * 1e3 for p in points if p.problem == problem}
        theirs = {value: ms for (shape, value), ms in sweep.published_ms.items() if shape == sizes}
        for name, times_ms, dash in ((label, ours, "solid"), (f"{label}, the report's", theirs, "dash")):
            if times_ms:
                line = {"color": LINES[number * len(LINES) // len(problems)], "dash": dash}
                values = [str(value) for value in times_ms]
                figure.add_scatter(x=values, y=[*times_ms.values()], name=name, mode="lines+markers", line=line)
    figure.update_xaxes(title=sweep.parameter, type="category")
    figure.update_yaxes(title="ms", type="log")
    return titled(figure, f"{sweep.label} over {sweep.parameter}")
