"""Figures of a ladder: steps, roofline, errors, our ratios beside a report's, sweeps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from tuner.declare.problem import IEEE, Problem
from tuner.report.figures import FAILED, LIBRARY, LIMIT, OURS, bars, points, titled
from tuner.report.ladder_result import Ladder, SweepPoint
from tuner.results.units import is_compute_bound

#: Colours of the lines of a sweep, from small to large.
LINES = ("#a9d6e5", "#61a5c2", "#2a6f97", "#013a63", "#001b2e")
#: Figures of a report by which steps compare, and the power of them that grows with speed.
RATES = {"ms": -1, "gbps": 1, "gflops": 1, "of_library": 1}

Rows = Sequence[Mapping[str, Any]]


def ladder_figures(ladder: Ladder) -> dict[str, go.Figure]:
    """Figures by file name (without suffix), in the order of the page."""
    figures: dict[str, go.Figure] = {}
    for problem in ladder.problems:
        rows = [row for row in ladder.rows(problem) if row["time_s"]]
        name = "-".join([*(str(size) for _, size in problem.shape), problem.layout]).strip("-")
        if rows:
            figures |= {f"{kind}-{name}": figure for kind, figure in _of_problem(ladder, problem, rows)}
    timed = [point for point in ladder.sweeps if point.measurement.time_s]
    for _, some in itertools.groupby(timed, key=lambda point: id(point.sweep)):
        swept = list(some)
        sweep = swept[0].sweep
        figures[f"sweep-{sweep.kernel.name}-{sweep.parameter}".lower()] = _sweep(swept)
    return figures


def _of_problem(ladder: Ladder, problem: Problem, rows: Rows) -> Iterator[tuple[str, go.Figure]]:
    yield "ladder", _steps(ladder, problem, rows)
    if problem.precision != IEEE:
        yield "errors", _errors(ladder, problem, rows)
    if len(comparable(rows)) > 1:
        yield "beside", _beside(ladder, problem, rows)
    if problem.work.flops and ladder.limits.tflops:
        yield "roofline", _roofline(ladder, problem, rows)


def _flops_unit(tflops: float) -> tuple[str, float]:
    """The unit in which a speed reads well, and the factor from TFLOPS."""
    return ("TFLOPS", 1.0) if tflops >= 1 else ("GFLOPS", 1e3)


def _steps(ladder: Ladder, problem: Problem, rows: Rows) -> go.Figure:
    """Bars from the first step, at the top, to the last, with libraries and limit as lines."""
    unit, amount = "GB/s", problem.work.bytes * 1e-9
    if is_compute_bound(problem.work.flops, problem.work.bytes):
        unit, scale = _flops_unit(max(row["tflops"] for row in rows))
        amount = problem.work.flops * 1e-12 * scale
    lines = [
        (library.name, amount / library.measurement.time_s, LIBRARY, "solid" if library.main else "dot")
        for library in ladder.libraries
        if library.problem == problem and library.measurement.time_s
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


def _errors(ladder: Ladder, problem: Problem, rows: Rows) -> go.Figure:
    """A point for each step, and the library: its error over its speed."""
    marks = [(row["label"], row["tflops"], row["error"]["rms_rel"], OURS) for row in rows if row["error"]]
    for library in ladder.libraries:
        error, time_s = library.measurement.error, library.measurement.time_s
        if library.problem == problem and error is not None and time_s:
            marks.append((library.name, problem.work.flops / time_s / 1e12, error.rms_rel, LIBRARY))
    figure = go.Figure()
    for number, (label, tflops, rms, colour) in enumerate(marks):
        place = "bottom right" if number % 2 else "top right"
        text: dict[str, Any] = {"text": [label], "textposition": place, "showlegend": False}
        points(figure, [tflops], [rms], label, colour, "markers+text", **text)
    figure.update_xaxes(title="TFLOPS; to the right is faster")
    figure.update_yaxes(title="error, root mean square over the result's; further down is exact", type="log")
    return titled(figure, f"Error beside speed of {problem} on {ladder.device.name}")


def _roofline(ladder: Ladder, problem: Problem, rows: Rows) -> go.Figure:
    limits, bandwidth = ladder.limits, ladder.limits.bandwidth_gbps(problem)
    unit, scale = _flops_unit(limits.tflops)
    intensity, ridge = problem.work.flops / problem.work.bytes, limits.tflops * 1e3 / bandwidth
    roof = [min(intensity, ridge) / 8, ridge, max(intensity, ridge) * 8]
    speeds, labels = [scale * row["tflops"] for row in rows], [row["label"] for row in rows]
    figure, aside = go.Figure(), [intensity * 1.06] * len(rows)
    name = f"memory {bandwidth:.0f} GB/s, multiply-adds {scale * limits.tflops:.3g} {unit}"
    points(figure, roof, [scale * min(x * bandwidth * 1e-3, limits.tflops) for x in roof], name, LIMIT, "lines")
    points(figure, [intensity] * len(rows), speeds, "steps", OURS, text=labels)
    text: dict[str, Any] = {"text": labels, "textposition": "middle right", "hoverinfo": "skip"}
    points(figure, aside, _spread(speeds), "", OURS, "text", showlegend=False, **text)
    library = ladder.library_of(problem)
    if library is not None and library.measurement.time_s:
        speed = scale * problem.work.flops / library.measurement.time_s * 1e-12
        points(figure, [intensity], [speed], library.name, LIBRARY, marker={"symbol": "diamond"})
    figure.update_xaxes(title="flops per byte that must move", type="log")
    figure.update_yaxes(title=unit, type="log")
    return titled(figure, f"Roofline of {ladder.device.name} with the steps of {problem}")


def _spread(heights: Sequence[float]) -> list[float]:
    """Heights of labels on a logarithmic axis: near their points, without overlaps."""
    placed, lowest = {}, -math.inf
    for number in sorted(range(len(heights)), key=lambda number: heights[number]):
        lowest = max(math.log10(heights[number]), lowest + 0.09)
        placed[number] = 10**lowest
    return [placed[number] for number in range(len(heights))]


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
    labels = [row["label"] for row, _ in compared]
    for name, ratios, colour in (
        (f"here, {ladder.device.name}", ours, OURS),
        (f"report, {first['published']['hardware']}", theirs, FAILED),
    ):
        text = [f"{ratio:.3g}" for ratio in ratios]
        figure.add_bar(x=labels, y=ratios, name=name, marker_color=colour, text=text, textposition="outside")
    far_apart = max(*ours, *theirs) > 20 * min(*ours, *theirs)
    figure.update_yaxes(title=f"times as fast as {first['label']}", type="log" if far_apart else "linear")
    return titled(figure, f"What each step buys: {problem}, over the first step, here and in the report")


def _sweep(swept: Sequence[SweepPoint]) -> go.Figure:
    """Time over the value, with a line for each problem; the report's dashed."""
    sweep, figure = swept[0].sweep, go.Figure()
    problems = list(dict.fromkeys(point.problem for point in swept))
    for number, problem in enumerate(problems):
        colour = LINES[number * len(LINES) // len(problems)]
        sizes = tuple(size for _, size in problem.shape)
        own = (point for point in swept if point.problem == problem)
        ours = {point.value: (point.measurement.time_s or 0.0) * 1e3 for point in own}
        theirs = {value: ms for (shape, value), ms in sweep.published_ms.items() if shape == sizes}
        label = " x ".join(map(str, sizes))
        for name, times_ms, dash in ((label, ours, "solid"), (f"{label}, the report's", theirs, "dash")):
            if times_ms:
                values, line = [str(value) for value in times_ms], {"dash": dash}
                points(figure, values, list(times_ms.values()), name, colour, "lines+markers", line)
    figure.update_xaxes(title=sweep.parameter, type="category")
    figure.update_yaxes(title="ms", type="log")
    return titled(figure, f"{sweep.label} over {sweep.parameter}")
