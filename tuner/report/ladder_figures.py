"""Figures of a ladder: steps, roofline, errors, our ratios beside a report's, sweeps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from tuner.declare.problem import IEEE, Problem
from tuner.report.figures import FAILED, LIBRARY, LIMIT, OURS, titled
from tuner.report.rungs import Ladder, SweepPoint
from tuner.results.units import is_compute_bound

#: Colours of the lines of a sweep, from small to large.
LINES = ("#a9d6e5", "#61a5c2", "#2a6f97", "#013a63", "#001b2e")
#: Figures of a report by which steps compare, and whether more is faster.
RATES = (("ms", False), ("gbps", True), ("gflops", True), ("of_library", True))

Rows = Sequence[Mapping[str, Any]]


def ladder_figures(ladder: Ladder) -> dict[str, go.Figure]:
    """Figures by file name (without suffix), in the order of the page."""
    figures: dict[str, go.Figure] = {}
    for problem in dict.fromkeys(rung.problem for rung in ladder.rungs):
        rows = [row for row in ladder.rows() if row["problem"] == problem.to_json() and row["time_s"]]
        name = problem_name(problem)
        if rows:
            figures |= {f"{kind}-{name}": figure for kind, figure in _of_problem(ladder, problem, rows)}
    by_sweep: dict[int, list[SweepPoint]] = {}
    for point in ladder.sweeps:
        if point.measurement.time_s:
            by_sweep.setdefault(id(point.sweep), []).append(point)
    for points in by_sweep.values():
        sweep = points[0].sweep
        figures[f"sweep-{sweep.kernel.name}-{sweep.parameter}".lower()] = _sweep(points)
    return figures


def problem_name(problem: Problem) -> str:
    """A problem as a part of file names."""
    return "-".join([*(str(size) for _, size in problem.shape), problem.layout]).strip("-")


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
    unit, per_second = "GB/s", problem.work.bytes * 1e-9
    if is_compute_bound(problem.work.flops, problem.work.bytes):
        unit, scale = _flops_unit(max(row["tflops"] for row in rows))
        per_second = problem.work.flops * 1e-12 * scale
    speeds = [per_second / row["time_s"] for row in rows][::-1]
    steps = [*(row["step_speedup"] for row in rows[:0:-1]), None]
    text = [
        f"{speed:.3g}" + (f"   {step:.2f} x" if step else "") for speed, step in zip(speeds, steps, strict=True)
    ]
    figure = go.Figure(
        go.Bar(
            x=speeds, y=[row["label"] for row in rows][::-1], orientation="h", text=text, name="steps",
            marker_color=OURS, textposition="outside", cliponaxis=False, showlegend=False,
        )
    )  # fmt: skip
    lines = [
        (library.name, per_second / library.measurement.time_s, LIBRARY, "solid" if library.main else "dot")
        for library in ladder.libraries
        if library.problem == problem and library.measurement.time_s
    ]
    if least_s := ladder.limits.least_s(problem):
        lines.append(("measured limit", per_second / least_s, LIMIT, "dash"))
    for name, speed, colour, dash in lines:
        label = f"{name} {speed:.3g} {unit}"
        figure.add_vline(x=speed, line_color=colour, line_dash=dash, name=label, showlegend=True)
    widest = max(*speeds, *(speed for _, speed, _, _ in lines), 0.0)
    figure.update_layout(showlegend=True)
    figure.update_yaxes(automargin=True)
    axis = f"{unit}; beside each bar its speed, and how many times faster than the step before"
    figure.update_xaxes(title=axis, range=[0, 1.16 * widest])
    return titled(figure, f"The steps of {problem} on {ladder.device.name}", 200 + 40 * len(rows))


def _errors(ladder: Ladder, problem: Problem, rows: Rows) -> go.Figure:
    """A point for each step, and the library: its error over its speed."""
    points = [(row["label"], row["tflops"], row["error"]["rms_rel"], OURS) for row in rows if row["error"]]
    for library in ladder.libraries:
        error, time_s = library.measurement.error, library.measurement.time_s
        if library.problem == problem and error is not None and time_s:
            points.append((library.name, problem.work.flops / time_s / 1e12, error.rms_rel, LIBRARY))
    figure = go.Figure()
    for number, (label, tflops, rms, colour) in enumerate(points):
        figure.add_scatter(
            x=[tflops], y=[rms], text=[label], mode="markers+text", name=label, marker={"color": colour},
            textposition="bottom right" if number % 2 else "top right", showlegend=False,
        )  # fmt: skip
    figure.update_xaxes(title="TFLOPS; to the right is faster")
    figure.update_yaxes(title="error, root mean square over the result's; further down is exact", type="log")
    return titled(figure, f"Error beside speed of {problem} on {ladder.device.name}")


def _roofline(ladder: Ladder, problem: Problem, rows: Rows) -> go.Figure:
    limits, bandwidth = ladder.limits, ladder.limits.bandwidth_gbps(problem)
    unit, scale = _flops_unit(limits.tflops)
    intensity, ridge = problem.work.flops / problem.work.bytes, limits.tflops * 1e3 / bandwidth
    roof = [min(intensity, ridge) / 8, ridge, max(intensity, ridge) * 8]
    figure = go.Figure()
    figure.add_scatter(
        x=roof, y=[scale * min(x * bandwidth * 1e-3, limits.tflops) for x in roof], mode="lines",
        name=f"memory {bandwidth:.0f} GB/s, multiply-adds {scale * limits.tflops:.3g} {unit}",
        line={"color": LIMIT},
    )  # fmt: skip
    speeds, labels = [scale * row["tflops"] for row in rows], [row["label"] for row in rows]
    figure.add_scatter(
        x=[intensity] * len(rows), y=speeds, mode="markers", name="steps", text=labels, marker={"color": OURS}
    )  # fmt: skip
    figure.add_scatter(
        x=[intensity * 1.06] * len(rows), y=_spread(speeds), mode="text", text=labels, hoverinfo="skip",
        textposition="middle right", showlegend=False,
    )  # fmt: skip
    library = ladder.library_of(problem)
    if library is not None and library.measurement.time_s:
        speed = scale * problem.work.flops / library.measurement.time_s * 1e-12
        marker = {"color": LIBRARY, "symbol": "diamond"}
        figure.add_scatter(x=[intensity], y=[speed], mode="markers", name=library.name, marker=marker)
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
        for name, more_is_faster in RATES:
            if name in published:
                speed = float(published[name]) if more_is_faster else 1.0 / float(published[name])
                key = (published["source"], published["hardware"], tuple(published["shape"]), name)
                by_kind.setdefault(key, []).append((row, speed))
    return max(by_kind.values(), key=len, default=[])


def _beside(ladder: Ladder, problem: Problem, rows: Rows) -> go.Figure:
    """Speed-ups over the report's first step, ours and the report's."""
    compared = comparable(rows)
    first, first_speed = compared[0]
    ours = [first["time_s"] / row["time_s"] for row, _ in compared]
    theirs = [speed / first_speed for _, speed in compared]
    labels, figure = [row["label"] for row, _ in compared], go.Figure()
    hardware = first["published"]["hardware"]
    for name, ratios, colour in (
        (f"here, {ladder.device.name}", ours, OURS),
        (f"report, {hardware}", theirs, FAILED),
    ):
        text = [f"{ratio:.3g}" for ratio in ratios]
        figure.add_bar(x=labels, y=ratios, name=name, marker_color=colour, text=text, textposition="outside")
    far_apart = max(*ours, *theirs) > 20 * min(*ours, *theirs)
    figure.update_yaxes(title=f"times as fast as {first['label']}", type="log" if far_apart else "linear")
    return titled(figure, f"What each step buys: {problem}, over the first step, here and in the report")


def _sweep(points: Sequence[SweepPoint]) -> go.Figure:
    """Time over the value, with a line for each problem; the report's dashed."""
    sweep, figure = points[0].sweep, go.Figure()
    problems = list(dict.fromkeys(point.problem for point in points))
    for number, problem in enumerate(problems):
        colour = LINES[min(number * len(LINES) // len(problems), len(LINES) - 1)]
        sizes = tuple(size for _, size in problem.shape)
        ours = {
            point.value: (point.measurement.time_s or 0.0) * 1e3 for point in points if point.problem == problem
        }
        theirs = {
            value: sweep.published_ms[key]
            for value in sweep.values
            if (key := (sizes, value)) in sweep.published_ms
        }
        label = " x ".join(map(str, sizes))
        for name, times_ms, dash in ((label, ours, "solid"), (f"{label}, the report's", theirs, "dash")):
            if times_ms:
                figure.add_scatter(
                    x=[str(value) for value in times_ms], y=list(times_ms.values()), mode="lines+markers",
                    name=name, line={"color": colour, "dash": dash},
                )  # fmt: skip
    figure.update_xaxes(title=sweep.parameter, type="category")
    figure.update_yaxes(title="ms", type="log")
    return titled(figure, f"{sweep.label} over {sweep.parameter}")
