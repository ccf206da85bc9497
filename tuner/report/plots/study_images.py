"""The figures of `tuner.report.plots.studies` as PNG images."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from tuner.report.plots.figures import BEHIND_TEXT, png
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

#: Colours: ours, the library's, pruned trials, failures.
OURS, LIBRARY, STOPPED, FAILED = "#2a6f97", "#c1666b", "#a9b8bd", "#d9a441"


def images(seen: Seen) -> dict[str, bytes]:
    """PNG by name; those that the study has no data for are left out."""
    draw: Mapping[str, Callable[[Seen], Figure | None]] = {
        "history": _history, "importance": _importance, "pairs": _pairs, "parallel": _parallel,
        "failures": _failures, "time": _time,
    }  # fmt: skip
    found = {name: each(seen) for name, each in draw.items()}
    return {name: png(each) for name, each in found.items() if each is not None}


def _axes(title: str, height: float = 4.4) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(9.0, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, loc="left", fontsize=11)
    return figure, axes


def _history(seen: Seen) -> Figure | None:
    if not seen.timed:
        return None
    figure, axes = _axes(f"Speed by trial: {seen.title}")
    number = {each.id: at for at, each in enumerate(seen.trials, 1)}
    for outcome, label, colour, face in (
        (Outcome.PRUNED, "stopped early", STOPPED, "none"),
        (Outcome.MEASURED, "measured", OURS, OURS),
    ):
        some = [each for each in seen.timed if each.measurement.outcome is outcome]
        axes.scatter(
            [number[each.id] for each in some], [seen.speed(each.measurement.time_s or 1) for each in some],
            s=22, edgecolors=colour, facecolors=face, label=label,
        )  # fmt: skip
    best_s, places, speeds = math.inf, [], []
    for at, each in enumerate(seen.trials, 1):
        if each.measurement.outcome is Outcome.MEASURED:
            best_s = min(best_s, each.measurement.time_s or math.inf)
        if best_s < math.inf:
            places.append(at)
            speeds.append(seen.speed(best_s))
    axes.step(places, speeds, where="post", color=OURS, label="best so far")
    if seen.baseline is not None and seen.baseline.measurement.time_s:
        speed = seen.speed(seen.baseline.measurement.time_s)
        axes.axhline(speed, color=LIBRARY, linestyle="--", label=seen.baseline.kernel)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("trial")
    axes.set_ylabel(seen.unit)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure


def _bars(title: str, values: Mapping[str, float], label: str, form: str, colours: list[str]) -> Figure:
    figure, axes = _axes(title, 1.4 + 0.32 * len(values))
    shown = axes.barh(list(values), list(values.values()), color=colours)
    axes.bar_label(shown, labels=[form.format(each) for each in values.values()], padding=3, fontsize=9)
    axes.margins(x=0.1)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    if "%" in form:
        axes.set_xlim(0, max(0.1, 1.15 * max(values.values())))
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    return figure


def _importance(seen: Seen) -> Figure | None:
    found = importance(seen)
    label = "share of the variance of log time that its values explain alone"
    return _bars(f"What matters in {seen.kernel}", found, label, "{:.0%}", [OURS]) if found else None


def _pairs(seen: Seen) -> Figure | None:
    shown = pairs_shown(seen)
    if not shown:
        return None
    wide = min(len(shown), 3)
    tall = math.ceil(len(shown) / wide)
    figure = Figure(figsize=(3.6 * wide + 1, 3.0 * tall + 0.5), layout="constrained")
    grids = [numpy.array(best_by_pair(seen, *pair), dtype=float) for pair in shown]
    low, high = min(map(numpy.nanmin, grids)), max(map(numpy.nanmax, grids))
    every, image = figure.subplots(tall, wide, squeeze=False), None
    for axes, pair, grid in zip(every.flat, shown, grids, strict=False):
        one, other = pair
        image = axes.imshow(grid, origin="lower", aspect="auto", vmin=low, vmax=high, cmap="viridis")
        axes.set_xticks(range(grid.shape[1]), [str(each) for each in seen.parameters[one]], fontsize=8)
        axes.set_yticks(range(grid.shape[0]), [str(each) for each in seen.parameters[other]], fontsize=8)
        axes.set_xlabel(one)
        axes.set_ylabel(other)
    for axes in every.flat[len(shown) :]:
        axes.set_visible(False)
    assert image is not None
    figure.colorbar(image, ax=every, label=f"best {seen.unit}")
    figure.suptitle(f"Best speed by pairs of parameters of {seen.kernel}", x=0.01, ha="left", fontsize=11)
    return figure


def _parallel(seen: Seen) -> Figure | None:
    if not seen.parameters:
        return None
    figure, axes = _axes(f"Configs of {seen.kernel}, the fastest on top")
    speeds = numpy.array([seen.speed(each.measurement.time_s or 1) for each in seen.of_kernel])
    spread = numpy.ptp(speeds) or 1.0
    names = [*seen.parameters, seen.unit]
    for at in numpy.argsort(speeds):
        record, share = seen.of_kernel[at], (speeds[at] - speeds.min()) / spread
        heights = [
            values.index(record.config[name]) / (len(values) - 1) for name, values in seen.parameters.items()
        ]
        colour, alpha = colormaps["viridis"](share), 0.25 + 0.7 * share
        axes.plot(range(len(names)), [*heights, share], color=colour, alpha=alpha, lw=1)
    for place, values in enumerate(seen.parameters.values()):
        axes.axvline(place, color="#c8d0d3", lw=0.8)
        for height, value in enumerate(values):
            where = place - 0.03, height / (len(values) - 1)
            axes.annotate(str(value), where, fontsize=8, ha="right", va="center", bbox=BEHIND_TEXT)
    last = len(names) - 1
    axes.annotate(f"{speeds.max():.4g}", (last, 1), fontsize=8, ha="left", va="center")
    axes.annotate(f"{speeds.min():.4g}", (last, 0), fontsize=8, ha="left", va="center")
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    return figure


def _failures(seen: Seen) -> Figure | None:
    if not seen.trials:
        return None
    measured = sum(each.measurement.outcome is Outcome.MEASURED for each in seen.trials)
    counts: dict[str, float] = {"measured": measured}
    colours = [OURS]
    for (outcome, why), count in list(reasons(seen).items())[:11]:
        name = ended(outcome, why, 50)
        counts[name] = counts.get(name, 0) + count
        colours.append(STOPPED if outcome == Outcome.PRUNED.value else FAILED)
    return _bars("How trials ended, and why", counts, "trials", "{:.0f}", colours)


def _time(seen: Seen) -> Figure | None:
    spent = seconds_by_stage(seen)
    label = "seconds; compile workers and the search work beside the device"
    return _bars("Where the time went", spent, label, "{:.3g} s", [OURS]) if spent else None
