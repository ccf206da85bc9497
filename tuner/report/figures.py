"""Figures of studies, Pareto fronts, devices and ladders, as Plotly draws them."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from tuner.report import study_view
from tuner.report.ladder_plan import Section
from tuner.report.ladder_result import Ladder
from tuner.results.measurement import Outcome
from tuner.results.objectives import Front
from tuner.results.record import Champion
from tuner.results.units import config_text, duration, speed_unit

#: Colours: ours, the library's, what was stopped or beaten, failures and reports, limits.
OURS, LIBRARY, STOPPED, FAILED, LIMIT = "#2a6f97", "#c1666b", "#a9b8bd", "#d9a441", "#5f6b6d"
#: Name of an objective beside time -> its axis, and the factor from joules or a ratio to its unit.
OBJECTIVES = {"energy": ("mJ a run", 1e3), "error": ("rms error against float64", 1.0)}
#: Flops a byte at the roofline's left edge, where problems without arithmetic stand.
EDGE = 0.1
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
    style = {"mode": "markers", "hovertemplate": f"{hover}<br>%{{text}}<extra></extra>"} | style
    figure.add_scatter(x=x, y=y, text=texts, **style)


# ---- of a study


def figures(study: study_view.StudyView) -> NamedFigures:
    """Figures by name; those that the study has no data for are left out."""
    drawn = {
        "history": study.timed and _history(study), "importance": _importance(study), "pairs": _pairs(study),
        "parallel": study.parameters and _parallel(study), "failures": study.trials and _failures(study),
        "time": _time_spent(study),
    }  # fmt: skip
    return NamedFigures({name: figure for name, figure in drawn.items() if figure})


def _importance(study: study_view.StudyView) -> go.Figure | None:
    shares = study_view.importance(study)
    if not shares:
        return None
    axis = "variance of log time explained alone"
    texts = [f"{share:.1%}" for share in shares.values()]
    figure = bars(shares, texts, axis, f"What matters in {study.kernel}")
    return figure.update_xaxes(tickformat=".0%", range=[0, max(0.1, 1.15 * max(shares.values()))])


def _failures(study: study_view.StudyView) -> go.Figure:
    measured = sum(trial.measurement.outcome is Outcome.MEASURED for trial in study.trials)
    counts = dict([("measured", measured), *study_view.reasons(study).items()][:12])
    return bars(counts, [*map(str, counts.values())], "trials", "How trials ended, and why")


def _time_spent(study: study_view.StudyView) -> go.Figure | None:
    spent = study_view.seconds_by_stage(study)
    axis = "seconds; compile workers and the search work beside the device"
    texts = [f"{seconds:.3g} s" for seconds in spent.values()]
    return bars(spent, texts, axis, "Where the time went") if spent else None


def _history(study: study_view.StudyView) -> go.Figure:
    """Speed by trial, the best so far, and the library."""
    figure, speeds = go.Figure(), [0.0] * len(study.trials)
    layers: dict[Outcome, list[Any]] = {Outcome.MEASURED: [], Outcome.PRUNED: []}
    timed = {trial.id for trial in study.timed}
    for number, trial in enumerate(study.trials):
        if trial.id in timed:
            outcome, text = trial.measurement.outcome, f"{trial.kernel}<br>{config_text(trial.config)}"
            layers[outcome].append((number + 1, study.speed(trial), text))
            speeds[number] = study.speed(trial) if outcome is Outcome.MEASURED else 0.0
    styles = ("measured", OURS, "circle"), ("stopped early", STOPPED, "circle-open")
    for (name, colour, symbol), places in zip(styles, layers.values(), strict=True):
        if places:
            marker = {"color": colour, "symbol": symbol, "size": 7}
            points(figure, places, f"trial %{{x}}: %{{y:.4g}} {study.unit}", name=name, marker=marker)
    numbers = [*range(1, len(speeds) + 1)]
    figure.add_scatter(
        x=numbers, y=[best or None for best in itertools.accumulate(speeds, max)], mode="lines",
        name="best so far", line={"color": OURS, "width": 2, "shape": "hv"}, hoverinfo="skip",
    )  # fmt: skip
    if study.baseline is not None and study.baseline.measurement.time_s:
        speed = study.speed(study.baseline)
        figure.add_scatter(
            x=[numbers[0], numbers[-1]], y=[speed, speed], mode="lines", hoverinfo="skip",
            name=f"{study.baseline.kernel} {speed:.3g} {study.unit}", line={"color": LIBRARY, "dash": "dash"},
        )  # fmt: skip
    figure.update_xaxes(title="trial")
    figure.update_yaxes(title=study.unit, rangemode="tozero")
    return titled(figure, f"Speed by trial: {study.title}")


def _pairs(study: study_view.StudyView) -> go.Figure | None:
    """A heatmap of the best speed for each pair of values of two parameters, which a menu chooses."""
    figure, buttons, shown = go.Figure(), list[dict[str, Any]](), study_view.pairs_shown(study)
    if not shown:
        return None
    for number, (one, other) in enumerate(shown):
        columns, rows = ([str(value) for value in study.parameters[name]] for name in (one, other))
        figure.add_heatmap(
            x=columns, y=rows, z=study_view.best_by_pair(study, one, other), visible=not number,
            colorscale="Viridis", colorbar={"title": study.unit},
            hovertemplate=f"{one}=%{{x}} {other}=%{{y}}<br>best %{{z:.4g}} {study.unit}<extra></extra>",
        )  # fmt: skip
        visible = [at == number for at in range(len(shown))]
        titles = {"xaxis.title.text": one, "yaxis.title.text": other}
        buttons.append({"label": f"{one}, {other}", "method": "update", "args": [{"visible": visible}, titles]})
    figure.update_xaxes(type="category", title=shown[0][0]).update_yaxes(type="category", title=shown[0][1])
    menu = {"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}
    figure.update_layout(updatemenus=[menu])
    return titled(figure, f"Best speed by pairs of parameters of {study.kernel}")


def _parallel(study: study_view.StudyView) -> go.Figure:
    """Parallel coordinates: a line for each config, coloured by its speed."""
    speeds, axes = [study.speed(trial) for trial in study.of_kernel], list[dict[str, Any]]()
    for name, values in study.parameters.items():
        places = [values.index(trial.config[name]) for trial in study.of_kernel]
        ticks = {"tickvals": [*range(len(values))], "ticktext": [*map(str, values)]}
        axes.append({"label": name, "values": places, **ticks})
    axes.append({"label": study.unit, "values": speeds})
    line = {"color": speeds, "colorscale": "Viridis", "showscale": False}
    figure = go.Figure(go.Parcoords(line=line, dimensions=axes))
    titled(figure, f"Configs of {study.kernel}; drag along an axis to select", 460)
    return figure.update_layout(margin={"t": 110})


# ---- of several problems


def of_champions(champions: Sequence[Champion], limits: Mapping[str, float] | None) -> dict[str, go.Figure]:
    """Champions of a device beside the library; with limits, over their sizes and below the limits, too.

    Args:
        champions: At least one.
        limits: ``gbps`` and ``tflops`` as measured; without both there is no roof.
    """
    rows = [_row(champion) for champion in champions]
    axes = ("seconds of a run", "times as fast as the library")
    speedups = _over(rows, "time", "speedup", axes, "Speed-ups over the library")
    speedups.add_hline(y=1, line_dash="dash", line_color=LIMIT)
    if limits is None:
        return {"speedups": speedups}
    by_size = _over(rows, "n", "m", ("n", "m"), "Speed-ups by size")
    axes = ("flops per byte that must move", "TFLOPS")
    roofline = _over(rows, "intensity", "tflops", axes, "Roofline")
    if len(limits) == 2:
        gbps, tflops = limits["gbps"], limits["tflops"]
        ends = [EDGE, tflops * 1e3 / gbps, max([2e3 * tflops / gbps, *(row["intensity"] for row in rows)])]
        roof = [min(intensity * gbps / 1e3, tflops) for intensity in ends]
        name = "measured limits, float32"
        roofline.add_scatter(x=ends, y=roof, mode="lines", name=name, line={"color": LIMIT})
    return {"speedups": speedups, "map": by_size, "roofline": roofline}


def _row(champion: Champion) -> dict[str, Any]:
    """What is drawn of a champion: by name, its figures and dims."""
    record, doubtful = champion.record, bool(champion.doubts)
    ratio, time_s = champion.speedup or 0.0, record.measurement.time_s or 0.0
    words = f"{record.problem}<br>{record.kernel}, {duration(time_s)}, {champion.leads}"
    return {
        "operation": record.problem.operation, "words": words + (", provisional" if doubtful else ""),
        "doubtful": doubtful, "time": time_s, "speedup": ratio,
        "tflops": record.tflops or record.gbps * EDGE / 1e3,
        "intensity": record.work["flops"] / max(record.work["bytes"], 1.0) or EDGE, **record.problem.dims,
    }  # fmt: skip


def _over(rows: Rows, x: str, y: str, axes: Sequence[str], title: str) -> go.Figure:
    """Champions by two of their figures, coloured by their speed-ups; those without both are left out."""
    figure, rows = go.Figure(), [row for row in rows if row.get(x) and row.get(y)]
    operations = dict.fromkeys(row["operation"] for row in rows)
    for operation, symbol in zip(operations, itertools.cycle(SYMBOLS)):
        own = [row for row in rows if row["operation"] == operation]
        marker = {
            # What is in doubt is hollow, and neither green nor red; nor is what has no library beside it.
            "color": [1.0 if row["doubtful"] else row["speedup"] or 1.0 for row in own],
            "symbol": [f"{symbol}-open" if row["doubtful"] else symbol for row in own],
            "size": 10, "coloraxis": "coloraxis", "line": {"width": 1, "color": LIMIT},
        }  # fmt: skip
        places = [(row[x], row[y], row["words"]) for row in own]
        points(figure, places, "%{x:.4g}, %{y:.4g}", name=operation, marker=marker)
    bar = {"title": "x library", "thickness": 12}
    colours = {"colorscale": "RdYlGn", "cmid": 1, "cmin": 0.5, "cmax": 1.5, "colorbar": bar}
    figure.update_layout(coloraxis=colours)
    figure.update_xaxes(title=axes[0], type="log").update_yaxes(title=axes[1], type="log")
    return titled(figure, title, 480)


def front_figures(front: Front) -> dict[str, go.Figure]:
    """Every other objective over time: beaten configs grey, the front blue, with champion and library.

    Args:
        front: The front, with at least one point.
    """
    on_it, drawn = [front.values(point) for point in front.points], dict[str, go.Figure]()
    layers = [("beaten", front.beaten, {"size": 5, "color": STOPPED}), ("front", on_it, {"color": OURS})]
    if front.champion is not None:
        ring = {"size": 14, "symbol": "circle-open", "color": FAILED}
        layers.append(("champion: the fastest in the finals", [front.values(front.champion)], ring))
    if front.library is not None:
        diamond = {"symbol": "diamond", "color": LIBRARY}
        layers.append((front.library.kernel, [front.values(front.library)], diamond))
    for at, objective in enumerate(front.objectives[1:], 1):
        title, unit = OBJECTIVES[objective]
        drawn[objective] = figure = go.Figure()
        for name, values, marker in layers:
            x, y = [1e3 * value[0] for value in values], [unit * value[at] for value in values]
            figure.add_scatter(x=x, y=y, name=name, mode="markers", marker=marker)
        # An axis is logarithmic unless an error is 0.
        positive = all(value[at] > 0 for value in [*on_it, *front.beaten])
        figure.update_xaxes(title="ms", type="log")
        figure.update_yaxes(title=title, type="log" if positive else "linear")
        titled(figure, f"{objective.capitalize()} beside time", 480)
    return drawn


# ---- of a ladder


def ladder_figures(ladder: Ladder) -> dict[str, go.Figure]:
    """Figures by name, in the order of the page."""
    drawn: dict[str, go.Figure] = {}
    for section in ladder.sections:
        rows, problem = [row for row in ladder.rows(section) if row["time_s"]], section.problem
        if not rows:
            continue
        sweep = f"sweep-{rows[0]['kernel']}" if section.is_sweep else ""
        name = "-".join(filter(None, [sweep, *(str(size) for _, size in problem.shape), problem.layout]))
        drawn[f"ladder-{name}"] = _steps(ladder, section, rows)
        if len(comparable(rows)) > 1:
            drawn[f"beside-{name}"] = _beside(ladder, section, rows)
    return drawn


def _steps(ladder: Ladder, section: Section, rows: Rows) -> go.Figure:
    """Bars from the first step, at the top, to the last, with libraries and limit as lines."""
    work = section.problem.work
    unit, amount = speed_unit(work.flops, work.bytes, min(row["time_s"] for row in rows))
    speeds = {row["label"]: amount / row["time_s"] for row in rows}
    gains = ["", *(f"   {row['step_speedup']:.2f} x" if row["step_speedup"] else "" for row in rows[1:])]
    texts = [f"{speed:.3g}{gain}" for speed, gain in zip(speeds.values(), gains, strict=True)]
    axis = f"{unit}; beside each bar its speed, and how many times faster than the step before"
    figure = bars(speeds, texts, axis, f"{section.title}, on {ladder.device.name}")
    library, least_s = ladder.libraries.get(section.problem), ladder.limits.least_s(section.problem)
    lines = [("measured limit", amount / least_s, LIMIT)] if least_s else []
    if library is not None:
        lines.append((library.kernel, amount / (library.measurement.time_s or math.inf), LIBRARY))
    for name, speed, colour in lines:
        label = f"{name} {speed:.3g} {unit}"
        figure.add_vline(x=speed, line_color=colour, line_dash="dash", name=label, showlegend=True)
    longest = max([*speeds.values(), *(speed for _, speed, _ in lines)])
    return figure.update_xaxes(range=[0, 1.15 * longest]).update_layout(showlegend=True)


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
    report = f"report, {first['published']['hardware']}"
    for name, ratios, colour in ((f"here, {ladder.device.name}", ours, OURS), (report, theirs, FAILED)):
        texts = [f"{ratio:.3g}" for ratio in ratios]
        bar = {"text": texts, "textposition": "outside", "marker_color": colour, "name": name}
        figure.add_bar(x=[row["label"] for row, _ in compared], y=ratios, **bar)
    figure.update_yaxes(title=f"times as fast as {first['label']}", type="log")
    return titled(figure, f"What each step buys: {section.title}, over the first step, here and in the report")
