"""Figures of studies, comparisons, Pareto fronts, devices and ladders, as Plotly draws them."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from tuner.declare.problem import IEEE, Problem
from tuner.report.ladder_plan import Section
from tuner.report.ladder_result import Ladder
from tuner.report.study_view import (
    StudyView,
    best_by_pair,
    importance,
    pairs_shown,
    reasons,
    seconds_by_stage,
)
from tuner.results.measurement import Outcome
from tuner.results.objectives import Front
from tuner.results.record import Champion
from tuner.results.units import config_text, duration, speed_unit

#: Colours: ours, the library's, what was stopped or beaten, failures and reports, limits.
OURS, LIBRARY, STOPPED, FAILED, LIMIT = "#2a6f97", "#c1666b", "#a9b8bd", "#d9a441", "#5f6b6d"
#: Verdict of the second side of a comparison -> colour.
VERDICTS = {"faster": "#2a9d5c", "same": STOPPED, "slower": LIBRARY, "ambiguous": FAILED}
#: Name of an objective -> its axis, and the factor from seconds, joules or a ratio to its unit.
OBJECTIVES = {"time": ("ms", 1e3), "energy": ("mJ a run", 1e3), "error": ("rms error against float64", 1.0)}
#: Symbols of operations.
SYMBOLS = ("circle", "square", "diamond", "cross", "star")
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


def bars(named: Mapping[str, float], texts: Sequence[str], axis: str, title: str) -> go.Figure:
    """A bar for each name, the first on top, with a text beside it.

    Args:
        named: Name -> length.
        texts: What stands beside each.
        axis: Title of the axis.
        title: Of the figure.
    """
    names, lengths = ["<br>".join(textwrap.wrap(name[:60], 34)) for name in named], [*named.values()]
    bar = go.Bar(
        x=lengths, y=names, text=texts, orientation="h", textposition="outside", cliponaxis=False,
        customdata=[*named], hovertemplate="%{customdata}: %{text}<extra></extra>", marker_color=OURS,
        showlegend=False,
    )  # fmt: skip
    figure = go.Figure(bar)
    figure.update_xaxes(title=axis, range=[0, 1.15 * max(lengths)])
    figure.update_yaxes(automargin=True, autorange="reversed")
    return titled(figure, title, 150 + 32 * len(named))


def points(figure: go.Figure, places: Iterable[Any], hover: str, **style: Any) -> None:
    """Adds markers at (x, y, text); `hover` begins with what x and y are."""
    x, y, texts = zip(*places, strict=True)
    figure.add_scatter(
        x=x,
        y=y,
        text=texts,
        **{"mode": "markers", "hovertemplate": f"{hover}<br>%{{text}}<extra></extra>"} | style,
    )


# ---- of a study


def figures(study: StudyView) -> NamedFigures:
    """Figures by name; those that the study has no data for are left out."""
    draw: dict[str, tuple[Callable[[StudyView], go.Figure], object]] = {
        "history": (_history, study.timed), "importance": (_importance, importance(study)),
        "pairs": (_pairs, pairs_shown(study)), "parallel": (_parallel, study.parameters),
        "failures": (_failures, study.trials), "time": (_time_spent, seconds_by_stage(study)),
    }  # fmt: skip
    return NamedFigures({name: function(study) for name, (function, data) in draw.items() if data})


def _importance(study: StudyView) -> go.Figure:
    shares = importance(study)
    axis = "share of the variance of log time that its values explain alone"
    texts = [f"{share:.1%}" for share in shares.values()]
    figure = bars(shares, texts, axis, f"What matters in {study.kernel}")
    return figure.update_xaxes(tickformat=".0%", range=[0, max(0.1, 1.15 * max(shares.values()))])


def _failures(study: StudyView) -> go.Figure:
    measured = sum(trial.measurement.outcome is Outcome.MEASURED for trial in study.trials)
    counts = dict([("measured", measured), *reasons(study).items()][:12])
    return bars(counts, [*map(str, counts.values())], "trials", "How trials ended, and why")


def _time_spent(study: StudyView) -> go.Figure:
    spent = seconds_by_stage(study)
    axis = "seconds; compile workers and the search work beside the device"
    return bars(spent, [f"{seconds:.3g} s" for seconds in spent.values()], axis, "Where the time went")


def _history(study: StudyView) -> go.Figure:
    """Speed by trial, the best so far, and the library."""
    figure = go.Figure()
    number = {trial.id: at for at, trial in enumerate(study.trials, 1)}
    for outcome, name, colour, symbol in (
        (Outcome.MEASURED, "measured", OURS, "circle"),
        (Outcome.PRUNED, "stopped early", STOPPED, "circle-open"),
    ):
        places = [
            (number[trial.id], study.speed(trial), f"{trial.kernel}<br>{config_text(trial.config)}")
            for trial in study.timed
            if trial.measurement.outcome is outcome
        ]
        if places:
            marker = {"color": colour, "symbol": symbol, "size": 7}
            points(figure, places, f"trial %{{x}}: %{{y:.4g}} {study.unit}", name=name, marker=marker)
    measured = (trial.measurement.outcome is Outcome.MEASURED for trial in study.trials)
    speeds = [study.speed(trial) if timed else 0.0 for trial, timed in zip(study.trials, measured, strict=True)]
    figure.add_scatter(
        x=[*number.values()], y=[best or None for best in itertools.accumulate(speeds, max)], mode="lines",
        name="best so far", line={"color": OURS, "width": 2, "shape": "hv"}, hoverinfo="skip",
    )  # fmt: skip
    if study.baseline is not None and study.baseline.measurement.time_s:
        speed = study.speed(study.baseline)
        label = f"{study.baseline.kernel} {speed:.3g} {study.unit}"
        figure.add_hline(y=speed, line_color=LIBRARY, line_dash="dash", name=label, showlegend=True)
        figure.update_layout(yaxis_autorangeoptions={"include": [speed]})
    figure.update_xaxes(title="trial")
    figure.update_yaxes(title=study.unit, rangemode="tozero")
    return titled(figure, f"Speed by trial: {study.title}")


def _pairs(study: StudyView) -> go.Figure:
    """A heatmap of the best speed for each pair of values of two parameters, which a menu chooses."""
    figure, buttons = go.Figure(), list[dict[str, Any]]()
    shown = pairs_shown(study)
    for number, (one, other) in enumerate(shown):
        columns, rows = ([str(value) for value in study.parameters[name]] for name in (one, other))
        figure.add_heatmap(
            x=columns, y=rows, z=best_by_pair(study, one, other), visible=not number, colorscale="Viridis",
            colorbar={"title": study.unit},
            hovertemplate=f"{one}=%{{x}} {other}=%{{y}}<br>best %{{z:.4g}} {study.unit}<extra></extra>",
        )  # fmt: skip
        visible = [at == number for at in range(len(shown))]
        titles = {"xaxis.title.text": one, "yaxis.title.text": other}
        buttons.append({"label": f"{one}, {other}", "method": "update", "args": [{"visible": visible}, titles]})
    figure.update_xaxes(type="category", title=shown[0][0]).update_yaxes(type="category", title=shown[0][1])
    menu = {"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}
    figure.update_layout(updatemenus=[menu])
    return titled(figure, f"Best speed by pairs of parameters of {study.kernel}")


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


# ---- of several problems


def comparison(compared: Mapping[str, Any]) -> go.Figure:
    """Ratios with their intervals, a line for each problem, those that changed most on top.

    Args:
        compared: `tuner.report.comparing.Compared.to_json`.
    """
    rows = compared["problems"]
    names, ratios = [f"{row['problem']}, {row['regime']}" for row in rows], [row["ratio"] for row in rows]
    above, below = [row["high"] - row["ratio"] for row in rows], [row["ratio"] - row["low"] for row in rows]
    figure = go.Figure().add_scatter(
        x=ratios, y=names, mode="markers",
        marker={"size": 9, "color": [VERDICTS[row["verdict"]] for row in rows]},
        error_x={"type": "data", "symmetric": False, "color": LIMIT, "array": above, "arrayminus": below},
        text=[f"{row['verdict']}<br>A: {row['one']}<br>B: {row['other']}" for row in rows],
        hovertemplate="%{y}<br>%{x:.3f} x, %{text}<extra></extra>",
    )  # fmt: skip
    figure.add_vline(x=1, line_dash="dash", line_color=LIMIT)
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1], automargin=True)
    figure.update_xaxes(title=f"time of {compared['one']} over time of {compared['other']}", type="log")
    return titled(figure, "", 160 + 26 * len(names))


def of_champions(champions: Sequence[Champion], limits: Mapping[str, float] | None) -> dict[str, go.Figure]:
    """Champions of a device beside the library; with limits, over their sizes and below the limits, too.

    Args:
        champions: At least one.
        limits: ``gbps`` and ``tflops`` as measured; where one is missing, the best of the champions stands in.
    """
    axes = ("seconds of a run", "times as fast as the library")
    speedups = _over(champions, "time", "speedup", axes, "Speed-ups over the library")
    speedups.add_hline(y=1, line_dash="dash", line_color=LIMIT)
    if limits is None:
        return {"speedups": speedups}
    by_size = _over(champions, "n", "m", ("n", "m"), "Speed-ups by size")
    axes = ("flops per byte that must move", "TFLOPS")
    roofline = _over(champions, "intensity", "tflops", axes, "Roofline")
    gbps, tflops = (
        limits.get(name) or max(getattr(champion.record, name) for champion in champions)
        for name in ("gbps", "tflops")
    )
    ridge = tflops * 1e3 / gbps
    ends = [0.1, ridge, max([2 * ridge, *(max(trace.x) for trace in roofline.data)])]
    roofline.add_scatter(
        x=ends, y=[min(intensity * gbps / 1e3, tflops) for intensity in ends], mode="lines",
        name="measured limits, float32" if len(limits) == 2 else "best seen here", line={"color": LIMIT},
    )  # fmt: skip
    return {"speedups": speedups, "map": by_size, "roofline": roofline}


def _over(champions: Iterable[Champion], x: str, y: str, axes: Sequence[str], title: str) -> go.Figure:
    """Champions by two of their figures, coloured by their speed-ups; those without both are left out."""
    by_operation: dict[str, list[Any]] = {}
    for champion in champions:
        record, ratio, time_s = champion.record, champion.speedup, champion.record.measurement.time_s or 0.0
        figures = {
            "intensity": record.work["flops"] / max(record.work["bytes"], 1.0), "tflops": record.tflops,
            "time": time_s, "speedup": ratio, **record.problem.dims,
        }  # fmt: skip
        words = f"{record.problem}<br>{record.kernel}, {duration(time_s)}, {ratio or 0:.3f} x library"
        if figures.get(x) and figures.get(y):
            # What is in doubt is hollow, and neither green nor red; nor is what has no library beside it.
            doubtful = bool(champion.doubts)
            words += ", provisional" if doubtful else ""
            place = (
                figures[x],
                figures[y],
                words,
                1.0 if doubtful else ratio or 1.0,
                "-open" if doubtful else "",
            )
            by_operation.setdefault(record.problem.operation, []).append(place)
    figure = go.Figure()
    for (operation, places), symbol in zip(by_operation.items(), itertools.cycle(SYMBOLS)):
        *_, ratios, ends = zip(*places, strict=True)
        marker = {"size": 10, "color": ratios, "coloraxis": "coloraxis", "line": {"width": 1}}
        marker["symbol"] = [symbol + end for end in ends]
        points(figure, [place[:3] for place in places], "%{x:.4g}, %{y:.4g}", name=operation, marker=marker)
    bar = {"title": "x library", "thickness": 12}
    figure.update_layout(
        coloraxis={"colorscale": "RdYlGn", "cmid": 1, "cmin": 0.5, "cmax": 1.5, "colorbar": bar}
    )
    figure.update_xaxes(title=axes[0], type="log").update_yaxes(title=axes[1], type="log")
    return titled(figure, title, 480)


def front_figures(front: Front) -> dict[str, go.Figure]:
    """Every other objective over time: beaten configs grey, the front blue, with champion and library.

    Args:
        front: The front, with at least one point.
    """
    on_it = [front.values(point) for point in front.points]
    layers: dict[str, tuple[Sequence[Sequence[float]], dict[str, Any]]] = {
        "beaten": (front.beaten, {"size": 5, "color": STOPPED}), "front": (on_it, {"color": OURS}),
    }  # fmt: skip
    if front.champion is not None:
        ring = {"size": 14, "symbol": "circle-open", "color": FAILED}
        layers["champion: the fastest in the finals"] = [front.values(front.champion)], ring
    if front.library is not None:
        layers[front.library.kernel] = [front.values(front.library)], {"symbol": "diamond", "color": LIBRARY}
    drawn = {}
    for at, objective in enumerate(front.objectives[1:], 1):
        (x_title, x_unit), (y_title, y_unit) = OBJECTIVES["time"], OBJECTIVES[objective]
        drawn[objective] = figure = go.Figure()
        for name, (values, marker) in layers.items():
            x, y = ([value[axis] * unit for value in values] for axis, unit in ((0, x_unit), (at, y_unit)))
            figure.add_scatter(x=x, y=y, name=name, mode="markers", marker=marker)
        # An axis is logarithmic unless an error is 0.
        positive = all(value[at] > 0 for value in [*on_it, *front.beaten])
        figure.update_xaxes(title=x_title, type="log")
        figure.update_yaxes(title=y_title, type="log" if positive else "linear")
        titled(figure, f"{objective.capitalize()} beside time", 480)
    return drawn


# ---- of a ladder


def ladder_figures(ladder: Ladder) -> dict[str, go.Figure]:
    """Figures by name, in the order of the page."""
    drawn: dict[str, go.Figure] = {}
    for section in ladder.sections:
        rows = [row for row in ladder.rows(section) if row["time_s"]]
        sizes = [*(str(size) for _, size in section.problem.shape), section.problem.layout]
        name = "-".join(filter(None, [f"sweep-{rows[0]['kernel']}" if section.is_sweep else "", *sizes]))
        if rows:
            drawn |= {f"{kind}-{name}": figure for kind, figure in _of_section(ladder, section, rows)}
    return drawn


def _of_section(ladder: Ladder, section: Section, rows: Rows) -> Iterator[tuple[str, go.Figure]]:
    problem = section.problem
    yield "ladder", _steps(ladder, section, rows)
    if problem.precision != IEEE and not section.is_sweep:
        yield "errors", _errors(ladder, problem, rows)
    if len(comparable(rows)) > 1:
        yield "beside", _beside(ladder, section, rows)


def _steps(ladder: Ladder, section: Section, rows: Rows) -> go.Figure:
    """Bars from the first step, at the top, to the last, with libraries and limit as lines."""
    work = section.problem.work
    unit, amount = speed_unit(work.flops, work.bytes, min(row["time_s"] for row in rows))
    lines = [
        (library.name, amount / time_s, LIBRARY, "solid" if library.main else "dot")
        for library, time_s in ladder.libraries_of(section.problem)
    ]
    if least_s := ladder.limits.least_s(section.problem):
        lines.append(("measured limit", amount / least_s, LIMIT, "dash"))
    speeds = {row["label"]: amount / row["time_s"] for row in rows}
    gains = ["", *(f"   {row['step_speedup']:.2f} x" if row["step_speedup"] else "" for row in rows[1:])]
    texts = [f"{speed:.3g}{gain}" for speed, gain in zip(speeds.values(), gains, strict=True)]
    axis = f"{unit}; beside each bar its speed, and how many times faster than the step before"
    figure = bars(speeds, texts, axis, f"{section.title}, on {ladder.device.name}")
    for name, speed, colour, dash in lines:
        label = f"{name} {speed:.3g} {unit}"
        figure.add_vline(x=speed, line_color=colour, line_dash=dash, name=label, showlegend=True)
    longest = max([*speeds.values(), *(speed for _, speed, *_ in lines)])
    return figure.update_xaxes(range=[0, 1.15 * longest]).update_layout(showlegend=True)


def _errors(ladder: Ladder, problem: Problem, rows: Rows) -> go.Figure:
    """A point for each step, and the library, with its name: its error over its speed."""
    libraries = [
        {"label": library.name, **ladder.figures(problem, library.measurement)}
        for library, _ in ladder.libraries_of(problem)
    ]
    figure = go.Figure()
    for some, colour in ((rows, OURS), (libraries, LIBRARY)):
        places = [(row["tflops"], row["error"]["rms_rel"], row["label"]) for row in some if row["error"]]
        style = {"mode": "markers+text", "textposition": "top right", "marker": {"color": colour}}
        if places:
            points(figure, places, "%{x:.4g} TFLOPS, %{y:.3g}", showlegend=False, **style)
    figure.update_xaxes(title="TFLOPS; to the right is faster")
    figure.update_yaxes(title="rms error over the result; down is exact", type="log")
    return titled(figure, f"Error beside speed of {problem} on {ladder.device.name}")


def comparable(rows: Rows) -> list[tuple[Mapping[str, Any], float]]:
    """Rows of one report, shape and kind of figure, with its speeds in any unit; of the kind that most have."""
    by_kind: dict[tuple[Any, ...], list[tuple[Mapping[str, Any], float]]] = {}
    for row in rows:
        published = row["published"] or {}
        for name in [name for name in RATES if name in published]:
            key = (published["source"], published["hardware"], tuple(published["shape"]), name)
            by_kind.setdefault(key, []).append((row, float(published[name]) ** RATES[name]))
    return max(by_kind.values(), key=len, default=[])


def _beside(ladder: Ladder, section: Section, rows: Rows) -> go.Figure:
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
    figure.update_yaxes(title=f"times as fast as {first['label']}", type="log")
    return titled(figure, f"What each step buys: {section.title}, over the first step, here and in the report")
