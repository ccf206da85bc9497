"""The plots of a ladder as PNG images: steps, roofline, sweeps, and our ratios beside a report's."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from tuner.declare.problem import IEEE, Problem
from tuner.report.rungs import Ladder, SweepPoint

#: Flops per byte above which speed is shown in TFLOPS rather than GB/s.
COMPUTE_BOUND = 4.0
OURS, LIBRARY, LIMIT, REPORT, GREY = "#2a6f97", "#c1666b", "#5f6b6d", "#d9a441", "#9aa5a8"
#: Colours of the lines of a sweep, from small to large.
LINES = ("#a9d6e5", "#61a5c2", "#2a6f97", "#013a63", "#001b2e")
DPI = 160
#: Keeps numbers readable if a line passes behind them.
BEHIND_TEXT = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0}
#: Formats the numbers of a logarithmic axis as people write them.
PLAIN = FuncFormatter(lambda value, place: f"{value:g}")
#: Between the powers of ten only those that start with 2 or 5.
FIRST_DIGITS = FuncFormatter(lambda value, place: f"{value:g}" if f"{value:.0e}"[0] in "25" else "")

Image = tuple[str, bytes]


def figures(ladder: Ladder) -> dict[str, Image]:
    """Returns file name (without suffix) -> caption and PNG, in the order of the page."""
    drawn: dict[str, Image] = {}
    for problem in dict.fromkeys(rung.problem for rung in ladder.rungs):
        rows = [row for row in ladder.rows() if row["problem"] == problem.to_json() and row["time_s"]]
        if not rows:
            continue
        name = "-".join([*(str(size) for _, size in problem.shape), problem.layout]).strip("-")
        drawn[f"ladder-{name}"] = (f"The steps of {problem}.", _png(_steps, ladder, problem, rows))
        if problem.work.flops and ladder.limits.tflops:
            drawn[f"roofline-{name}"] = (
                f"Roofline of {ladder.device.name} with the steps of {problem}.",
                _png(_roofline, ladder, problem, rows),
            )
        if problem.precision != IEEE:
            caption = f"Error beside speed of {problem}: to the right is faster, further down more exact."
            drawn[f"errors-{name}"] = (caption, _png(_errors, ladder, problem, rows))
        if len(_comparable(rows)) > 1:
            caption = "Speed-up over the first step: ours, and the report's on its own hardware."
            drawn[f"beside-{name}"] = (caption, _png(_beside, ladder, problem, rows))
    for points in _by_sweep(ladder.sweeps):
        sweep = points[0].sweep
        caption = f"{sweep.label} over {sweep.parameter}" + (
            "; dashed, the report's." if sweep.published_ms else "."
        )
        drawn[f"sweep-{sweep.kernel.name}-{sweep.parameter}".lower()] = (caption, _png(_sweep, points))
    return drawn


def _png(draw: Callable[..., None], *what: Any) -> bytes:
    figure = Figure(figsize=(9.0, 4.8), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    draw(axes, *what)
    return png(figure)


def png(figure: Figure) -> bytes:
    """Returns a figure as an image."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def _computes(problem: Problem) -> bool:
    return problem.work.flops >= COMPUTE_BOUND * problem.work.bytes


def _flops_unit(tflops: Sequence[float]) -> tuple[str, float]:
    """Returns the unit in which speeds read well, and the factor from TFLOPS."""
    return ("TFLOPS", 1.0) if max(tflops) >= 1 else ("GFLOPS", 1e3)


def _steps(axes: Axes, ladder: Ladder, problem: Problem, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draws bars from the first step, at the top, to the last, with library and limit as lines."""
    if _computes(problem):
        unit, scale = _flops_unit([row["tflops"] for row in rows])
        per_second = problem.work.flops * 1e-12 * scale
    else:
        unit, per_second = "GB/s", problem.work.bytes * 1e-9
    speeds = [per_second / row["time_s"] for row in rows]
    places = range(len(rows))
    axes.barh(places, speeds, color=OURS, height=0.62)
    axes.set_yticks(places, [row["label"] for row in rows])
    axes.invert_yaxis()
    widest = max(speeds)
    for each in ladder.libraries:
        if each.problem == problem and each.measurement.time_s:
            speed = per_second / each.measurement.time_s
            widest = max(widest, speed)
            style = "-" if each.main else ":"
            axes.axvline(
                speed, color=LIBRARY, linestyle=style, linewidth=1.8, label=f"{each.name} {speed:.3g} {unit}"
            )
    least_s = ladder.limits.least_s(problem)
    if least_s:
        limit = per_second / least_s
        widest = max(widest, limit)
        axes.axvline(
            limit, color=LIMIT, linestyle="--", linewidth=1.6, label=f"measured limit {limit:.3g} {unit}"
        )
    for place, (row, speed) in enumerate(zip(rows, speeds, strict=True)):
        step = row["step_speedup"]
        more = f"   {step:.2f} x" if place and step else ""
        axes.text(
            speed + 0.01 * widest,
            place,
            f"{speed:.3g}{more}",
            va="center",
            fontsize=9,
            bbox=BEHIND_TEXT,
            zorder=5,
        )
    axes.set_xlim(0, 1.16 * widest)
    axes.set_xlabel(f"{unit}; beside each bar its speed, and how many times faster than the step before")
    axes.set_title(f"{problem} on {ladder.device.name}", loc="left", fontsize=12, fontweight="bold")
    if axes.get_legend_handles_labels()[0]:
        axes.figure.legend(frameon=False, loc="outside lower center", ncols=3)


def _errors(axes: Axes, ladder: Ladder, problem: Problem, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draws a point for each step, and the library: its error over its speed."""
    places = [(row["label"], row["tflops"], row["error"]["rms_rel"], OURS) for row in rows if row["error"]]
    for each in ladder.libraries:
        error, time_s = each.measurement.error, each.measurement.time_s
        if each.problem == problem and error is not None and time_s:
            places.append((each.name, problem.work.flops / time_s / 1e12, error.rms_rel, LIBRARY))
    for number, (label, tflops, error_rms, color) in enumerate(places):
        axes.plot(tflops, error_rms, "o", color=color, markersize=8)
        axes.annotate(
            label, (tflops, error_rms), (6, -14 if number % 2 else 6), textcoords="offset points", fontsize=9
        )
    axes.set_yscale("log")
    axes.margins(0.15)
    axes.set_xlabel("TFLOPS")
    axes.set_ylabel("error, root mean square over the result's")
    axes.set_title(f"{problem} on {ladder.device.name}", loc="left", fontsize=12, fontweight="bold")


def _roofline(axes: Axes, ladder: Ladder, problem: Problem, rows: Sequence[Mapping[str, Any]]) -> None:
    limits = ladder.limits
    unit, scale = _flops_unit([limits.tflops])
    bandwidth = limits.bandwidth_gbps(problem)
    intensity = problem.work.flops / problem.work.bytes
    ridge = limits.tflops * 1e3 / bandwidth
    left, right = min(intensity, ridge) / 8, max(intensity, ridge) * 8
    roof = [left, ridge, right]
    axes.loglog(
        roof, [scale * min(x * bandwidth * 1e-3, limits.tflops) for x in roof], color=LIMIT, linewidth=2.2
    )
    axes.annotate(
        f"memory: {bandwidth:.0f} GB/s", (left * 1.3, scale * left * 1.3 * bandwidth * 1e-3), fontsize=9,
        color=LIMIT, xytext=(12, -6), textcoords="offset points",
    )  # fmt: skip
    axes.annotate(
        f"multiply-adds: {scale * limits.tflops:.3g} {unit}", (right, scale * limits.tflops), fontsize=9,
        color=LIMIT, xytext=(0, 6), textcoords="offset points", ha="right",
    )  # fmt: skip
    heights = [scale * row["tflops"] for row in rows]
    axes.vlines(intensity, min(heights), max(heights), color=GREY, linewidth=0.8, zorder=1)
    axes.scatter([intensity] * len(rows), heights, color=OURS, zorder=3)
    for row, own, height in zip(rows, heights, _spread(heights), strict=True):
        axes.annotate(
            row["label"], (intensity, own), xytext=(intensity * 1.12, height), fontsize=9,
            va="center", textcoords="data",
        )  # fmt: skip
    library = ladder.library_of(problem)
    if library is not None and library.measurement.time_s:
        speed = scale * problem.work.flops / library.measurement.time_s * 1e-12
        axes.scatter([intensity], [speed], color=LIBRARY, marker="D", zorder=4)
        axes.annotate(
            library.name, (intensity, speed), xytext=(-8, 0), textcoords="offset points", ha="right",
            va="center", fontsize=9, color=LIBRARY,
        )  # fmt: skip
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PLAIN)
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("flops per byte that must move")
    axes.set_ylabel(unit)
    axes.set_title(f"Roofline of {ladder.device.name}: {problem}", loc="left", fontsize=12, fontweight="bold")
    axes.grid(which="major", color="#e6eaeb", linewidth=0.8)


def _spread(heights: Sequence[float]) -> list[float]:
    """Returns heights of labels on a logarithmic axis: near their points, without overlaps."""
    order = sorted(range(len(heights)), key=lambda number: heights[number])
    placed: dict[int, float] = {}
    lowest = -math.inf
    for number in order:
        lowest = max(math.log10(heights[number]), lowest + 0.09)
        placed[number] = 10**lowest
    return [placed[number] for number in range(len(heights))]


#: Figures of a report by which steps compare, and whether more is faster.
_RATES = (("ms", False), ("gbps", True), ("gflops", True), ("of_library", True))


def _comparable(rows: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], float]]:
    """Returns the rows of one report, shape and kind of figure, with its speeds in any unit."""
    found: dict[tuple[Any, ...], list[tuple[Mapping[str, Any], float]]] = {}
    for row in rows:
        told = row["published"] or {}
        for name, more_is_faster in _RATES:
            if name in told:
                speed = float(told[name]) if more_is_faster else 1.0 / float(told[name])
                key = (told["source"], told["hardware"], tuple(told["shape"]), name)
                found.setdefault(key, []).append((row, speed))
    return max(found.values(), key=len, default=[])


def _beside(axes: Axes, ladder: Ladder, problem: Problem, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draws speed-ups over the report's first step, ours and the report's."""
    compared = _comparable(rows)
    known = [row for row, _ in compared]
    first = known[0]
    ours = [first["time_s"] / row["time_s"] for row in known]
    theirs = [speed / compared[0][1] for _, speed in compared]
    places = range(len(known))
    axes.bar([x - 0.19 for x in places], ours, width=0.36, color=OURS, label=f"here, {ladder.device.name}")
    told = first["published"]
    axes.bar([x + 0.19 for x in places], theirs, width=0.36, color=REPORT, label=f"report, {told['hardware']}")
    for x, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        axes.text(x - 0.19, one, f"{one:.3g}", ha="center", va="bottom", fontsize=8)
        axes.text(x + 0.19, other, f"{other:.3g}", ha="center", va="bottom", fontsize=8)
    if max(*ours, *theirs) > 20 * min(*ours, *theirs):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(PLAIN)
    turned = len(known) > 5
    axes.set_xticks(
        places,
        [row["label"] for row in known],
        rotation=20 if turned else 0,
        ha="right" if turned else "center",
    )
    axes.set_ylabel(f"times as fast as {first['label']}")
    axes.set_title(f"What each step buys: {problem}", loc="left", fontsize=12, fontweight="bold")
    axes.legend(frameon=False)


def _by_sweep(points: Sequence[SweepPoint]) -> list[list[SweepPoint]]:
    """Returns the measured points of each sweep."""
    found: dict[int, list[SweepPoint]] = {}
    for each in points:
        if each.measurement.time_s:
            found.setdefault(id(each.sweep), []).append(each)
    return list(found.values())


def _sweep(axes: Axes, points: Sequence[SweepPoint]) -> None:
    """Draws time over the value, with a line for each problem."""
    sweep = points[0].sweep
    problems = list(dict.fromkeys(each.problem for each in points))
    values = [value for value in sweep.values if any(each.value == value for each in points)]
    for number, problem in enumerate(problems):
        colour = LINES[min(number * len(LINES) // max(len(problems), 1), len(LINES) - 1)]
        own = {each.value: each.measurement.time_s or 0.0 for each in points if each.problem == problem}
        places = [place for place, value in enumerate(values) if value in own]
        label = " x ".join(str(size) for _, size in problem.shape)
        axes.plot(places, [own[values[place]] * 1e3 for place in places], "o-", color=colour, label=label)
        sizes = tuple(size for _, size in problem.shape)
        told = [
            (place, sweep.published_ms[sizes, value])
            for place, value in enumerate(values)
            if (sizes, value) in sweep.published_ms
        ]
        if told:
            axes.plot(*zip(*told, strict=True), "s--", color=colour, markersize=4, linewidth=1.1, alpha=0.7)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(PLAIN)
    axes.yaxis.set_minor_formatter(FIRST_DIGITS)
    axes.set_xticks(range(len(values)), [str(value) for value in values])
    axes.set_xlabel(sweep.parameter)
    axes.set_ylabel("ms")
    axes.grid(axis="y", which="both", color="#e6eaeb", linewidth=0.7)
    title = f"{sweep.label}: {sweep.parameter}" + (" (dashed: the report)" if sweep.published_ms else "")
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    axes.figure.legend(frameon=False, fontsize=9, loc="outside right upper")
