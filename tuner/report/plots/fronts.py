"""The plot of a Pareto front as a PNG image: every other objective over the time."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tuner.report.plots.figures import FIRST_DIGITS, GREY, LIBRARY, OURS, PLAIN, REPORT, png
from tuner.results.objectives import Front
from tuner.results.record import Record

#: Name of an objective -> its axis, and the factor from seconds, joules or a ratio to its unit.
AXES = {"time": ("ms", 1e3), "energy": ("mJ a run", 1e3), "error": ("rms error against float64", 1.0)}


def front_image(front: Front, champion: Record) -> bytes:
    """Draws a front: beaten configs grey, the front blue, with champion and library.

    Args:
        front: The front, with at least one point.
        champion: The study's champion.

    Returns:
        A PNG.
    """
    others = range(1, len(front.objectives))
    figure = Figure(figsize=(9.0, 4.8 * len(others)), layout="constrained")
    for place in others:
        axes = figure.add_subplot(len(others), 1, place)
        axes.spines[["top", "right"]].set_visible(False)
        _panel(axes, front, place, champion)
    title = f"{champion.problem} on {champion.device.name}, {champion.regime}"
    figure.axes[0].set_title(title, loc="left", fontsize=12, fontweight="bold")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, loc="outside lower center", ncols=4)
    return png(figure)


def _panel(axes: Axes, front: Front, place: int, champion: Record) -> None:
    """Draws one objective over time, on logarithmic axes unless an error is 0."""
    (x_label, x_scale), (y_label, y_scale) = (AXES[front.objectives[each]] for each in (0, place))

    def drawn(points: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
        return [each[0] * x_scale for each in points], [each[place] * y_scale for each in points]

    on_it = [front.values(each) for each in front.points]
    if front.beaten:
        axes.scatter(*drawn(front.beaten), s=14, color=GREY, alpha=0.6, label="beaten")
    if len(front.objectives) == 2:
        # The staircase of the front: nothing below or left of it was found.
        axes.step(*drawn(on_it), where="post", color=OURS, linewidth=1.2, alpha=0.7, zorder=2)
    axes.scatter(*drawn(on_it), s=42, color=OURS, zorder=3, label="front")
    if front.champion is not None:
        axes.scatter(
            *drawn([front.values(front.champion)]), s=110, marker="o", facecolor="none", edgecolor=REPORT,
            linewidth=2.0, zorder=4, label="champion: the fastest in the finals",
        )  # fmt: skip
    if front.library is not None:
        axes.scatter(
            *drawn([front.values(front.library)]), s=48, marker="D", color=LIBRARY, zorder=4,
            label=front.library.kernel,
        )  # fmt: skip
    everything = [*on_it, *front.beaten]
    for number, axis, scale in ((0, axes.xaxis, axes.set_xscale), (place, axes.yaxis, axes.set_yscale)):
        if all(each[number] > 0 for each in everything):
            scale("log")
            axis.set_minor_formatter(FIRST_DIGITS)
            axis.set_tick_params(which="minor", labelsize=8)
        axis.set_major_formatter(PLAIN)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(which="major", color="#e6eaeb", linewidth=0.8)
