"""Draws figures of Plotly as PNG images through Matplotlib, which needs no browser.

It knows what the figures of this package are made of: points, lines, steps, bars, heatmaps, parallel
coordinates, and vertical lines across a panel.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import plotly.graph_objects as go
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

#: Pixels of Plotly for an inch, and dots of the image for an inch.
PIXELS, DPI = 100, 160
#: Inches of a figure's width.
WIDTH = 9.0
STYLES = {"dash": "--", "dot": ":", "solid": "-", None: "-"}
#: Plotly's symbol -> Matplotlib's marker and whether it is filled.
MARKERS = {"circle-open": ("o", False), "diamond": ("D", True)}
#: Between the powers of ten only those that start with 2 or 5 have a number.
PLAIN = FuncFormatter(lambda value, place: f"{value:g}" if f"{value:.0e}"[0] in "125" else "")
#: Keeps numbers readable if a line passes behind them.
BEHIND_TEXT = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0}


def png(figure: go.Figure) -> bytes:
    """Returns a figure as an image."""
    drawing = Figure(figsize=(WIDTH, figure.layout.height / PIXELS), layout="constrained")
    panels = _panels(drawing, figure)
    for trace in figure.data:
        _TRACES[trace.type](panels[(getattr(trace, "xaxis", None) or "x")[1:]], trace, figure)
    for line in figure.layout.shapes:
        axes = panels[(line.xref or "x").removesuffix(" domain")[1:]]
        axes.axvline(line.x0, color=line.line.color, linestyle=STYLES[line.line.dash], lw=1.8, label=line.name)
    for number, axes in panels.items():
        _finish(axes, figure.layout, number)
    _surround(drawing, figure, panels)
    buffer = io.BytesIO()
    drawing.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def _panels(drawing: Figure, figure: go.Figure) -> dict[str, Axes]:
    """Axes by the number of their x axis, in the grid that the domains of Plotly's axes make."""
    numbers = sorted({(getattr(trace, "xaxis", None) or "x")[1:] for trace in figure.data})
    lefts = {at: (figure.layout[f"xaxis{at}"].domain or (0, 1))[0] for at in numbers}
    tops = {at: -(figure.layout[f"yaxis{at}"].domain or (0, 1))[1] for at in numbers}
    columns, rows = sorted(set(lefts.values())), sorted(set(tops.values()))
    grid = drawing.add_gridspec(len(rows), len(columns))
    panels = {}
    for at in numbers:
        panels[at] = axes = drawing.add_subplot(grid[rows.index(tops[at]), columns.index(lefts[at])])
        axes.spines[["top", "right"]].set_visible(False)
    return panels


def _points(axes: Axes, trace: Any, figure: go.Figure) -> None:
    style: dict[str, Any] = {
        "label": trace.name if trace.showlegend is not False else None,
        "color": trace.line.color or trace.marker.color,
    }
    x, y = list(trace.x), list(trace.y)
    if any(value is None for value in y):
        y = numpy.array(y, dtype=float).tolist()
    if "lines" in trace.mode:
        steps: dict[str, Any] = {"drawstyle": "steps-post"} if trace.line.shape == "hv" else {}
        marker = "o" if "markers" in trace.mode else None
        axes.plot(x, y, linestyle=STYLES[trace.line.dash], linewidth=1.8, marker=marker, **steps, **style)
    else:
        marker, filled = MARKERS.get(trace.marker.symbol, ("o", True))
        if not filled:
            style |= {"facecolors": "none", "edgecolors": style.pop("color")}
        axes.scatter(x, y, s=(trace.marker.size or 7) ** 2 * 0.6, marker=marker, zorder=3, **style)
    if "text" in trace.mode:
        up = -8 if "bottom" in trace.textposition else 8
        for place, text in zip(zip(x, y, strict=True), trace.text, strict=True):
            axes.annotate(text, place, (8, up), textcoords="offset points", fontsize=9, va="center")


def _bars(axes: Axes, trace: Any, figure: go.Figure) -> None:
    """Bars of several traces stand beside each other."""
    along = trace.orientation == "h"
    names, values = (trace.y, trace.x) if along else (trace.x, trace.y)
    group = [other for other in figure.data if other.type == "bar"]
    width = 0.75 / len(group)
    places = numpy.arange(len(names)) + (group.index(trace) - (len(group) - 1) / 2) * width
    style = {"color": trace.marker.color, "label": trace.name if len(group) > 1 else None}
    bars = axes.barh(places, values, width, **style) if along else axes.bar(places, values, width, **style)
    (axes.set_yticks if along else axes.set_xticks)(range(len(names)), [_lines(name) for name in names])
    if not along and len(names) > 5:
        axes.tick_params(axis="x", rotation=20)
    axes.bar_label(bars, labels=trace.text, padding=3, fontsize=9, bbox=BEHIND_TEXT)


def _heatmap(axes: Axes, trace: Any, figure: go.Figure) -> None:
    grids = [numpy.array(other.z, dtype=float) for other in figure.data]
    low, high = min(map(numpy.nanmin, grids)), max(map(numpy.nanmax, grids))
    grid = numpy.array(trace.z, dtype=float)
    axes.imshow(grid, origin="lower", aspect="auto", vmin=low, vmax=high, cmap="viridis")
    axes.set_xticks(range(len(trace.x)), trace.x, fontsize=8)
    axes.set_yticks(range(len(trace.y)), trace.y, fontsize=8)


def _parallel(axes: Axes, trace: Any, figure: go.Figure) -> None:
    heights = []
    for place, axis in enumerate(trace.dimensions):
        values = numpy.array(axis["values"], dtype=float)
        low, spread = values.min(), numpy.ptp(values) or 1.0
        heights.append((values - low) / spread)
        axes.axvline(place, color="#c8d0d3", lw=0.8)
        ends = [f"{end:.4g}" for end in (low, values.max())]
        for value, text in zip(axis.tickvals or (low, values.max()), axis.ticktext or ends, strict=True):
            where = place - 0.03, (value - low) / spread
            axes.annotate(text, where, fontsize=8, ha="right", va="center", bbox=BEHIND_TEXT)
    lines = numpy.array(heights).T
    for line in lines[numpy.argsort(lines[:, -1])]:
        axes.plot(line, color=colormaps["viridis"](line[-1]), alpha=0.25 + 0.7 * line[-1], lw=1)
    axes.set_xticks(range(len(heights)), [axis.label for axis in trace.dimensions])
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)


_TRACES: Mapping[str, Callable[[Axes, Any, go.Figure], None]] = {
    "scatter": _points, "bar": _bars, "heatmap": _heatmap, "parcoords": _parallel,
}  # fmt: skip


def _finish(axes: Axes, layout: Any, number: str) -> None:
    """Titles, scales and ranges of one panel's axes."""
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        wanted = layout[f"{name}axis{number}"]
        axis.set_label_text(wanted.title.text or "")
        if wanted.type == "log":
            axes.set(**{f"{name}scale": "log"})
            axis.set_major_formatter(PLAIN)
            axis.set_minor_formatter(PLAIN)
        if wanted.tickformat:
            axis.set_major_formatter(PercentFormatter(1.0))
        if wanted.range or wanted.rangemode == "tozero":
            axes.set(**{f"{name}lim": wanted.range or (0, None)})


def _surround(drawing: Figure, figure: go.Figure, panels: Mapping[str, Axes]) -> None:
    """Title, legend and colour bar of the whole."""
    drawing.suptitle(figure.layout.title.text or "", x=0.01, ha="left", fontsize=11)
    handles, labels = next(iter(panels.values())).get_legend_handles_labels()
    if len(labels) > 1 or figure.layout.showlegend:
        drawing.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    images = [image for axes in panels.values() for image in axes.get_images()]
    if images:
        label = figure.layout.coloraxis.colorbar.title.text
        drawing.colorbar(images[0], ax=list(panels.values()), label=label)


def _lines(text: str) -> str:
    return str(text).replace("<br>", "\n")
