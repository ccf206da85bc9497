"""Draws figures of Plotly as PNG images through Matplotlib, which needs no browser.

It knows what the figures of this package are made of: points, lines, steps, bars, heatmaps, parallel
coordinates, and straight lines across a panel.
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
#: Inches of a figure's width, and of its height unless the figure says it.
WIDTH, HEIGHT = 9.0, 4.8
STYLES = {"dash": "--", "dot": ":", "solid": "-", None: "-"}
#: Between the powers of ten only those that start with 2 or 5 have a number.
PLAIN = FuncFormatter(lambda value, place: f"{value:g}" if f"{value:.0e}"[0] in "125" else "")
#: Keeps numbers readable if a line passes behind them.
BEHIND_TEXT = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0}


def png(figure: go.Figure) -> bytes:
    """Returns a figure as an image."""
    height = (figure.layout.height or HEIGHT * PIXELS) / PIXELS
    drawing = Figure(figsize=(WIDTH, height), layout="constrained")
    panels = _panels(drawing, figure)
    for trace in figure.data:
        _TRACES[trace.type](panels[getattr(trace, "xaxis", None) or "x"], trace, figure)
    for shape in figure.layout.shapes:
        _across(panels[(shape.xref or "x").removesuffix(" domain")], shape)
    for name, axes in panels.items():
        _finish(axes, figure.layout, name.removeprefix("x"))
    _surround(drawing, figure, panels)
    buffer = io.BytesIO()
    drawing.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def _panels(drawing: Figure, figure: go.Figure) -> dict[str, Axes]:
    """Axes by the name of their x axis, in the grid that the domains of Plotly's axes make."""
    numbers = sorted({(getattr(trace, "xaxis", None) or "x")[1:] for trace in figure.data})
    lefts = {at: (figure.layout[f"xaxis{at}"].domain or (0, 1))[0] for at in numbers}
    tops = {at: -(figure.layout[f"yaxis{at}"].domain or (0, 1))[1] for at in numbers}
    columns, rows = sorted(set(lefts.values())), sorted(set(tops.values()))
    grid = drawing.add_gridspec(len(rows), len(columns))
    found = {}
    for at in numbers:
        found[f"x{at}"] = axes = drawing.add_subplot(grid[rows.index(tops[at]), columns.index(lefts[at])])
        axes.spines[["top", "right"]].set_visible(False)
    return found


def _points(axes: Axes, trace: Any, figure: go.Figure) -> None:
    mode = trace.mode or "lines"
    style: dict[str, Any] = {"label": trace.name if trace.showlegend is not False else None}
    color = trace.line.color or trace.marker.color
    x, y = list(trace.x), numpy.array(trace.y, dtype=float) if _numeric(trace.y) else list(trace.y)
    if "lines" in mode:
        steps: dict[str, Any] = {"drawstyle": "steps-post"} if trace.line.shape == "hv" else {}
        line: dict[str, Any] = {"linestyle": STYLES[trace.line.dash], "linewidth": trace.line.width or 1.8}
        axes.plot(x, y, color=color, **line, **steps, **style, marker="o" if "markers" in mode else None)
    elif "markers" in mode:
        hollow = "open" in (trace.marker.symbol or "")
        shape = "D" if "diamond" in (trace.marker.symbol or "") else "o"
        face: dict[str, Any] = {"facecolors": "none", "edgecolors": color} if hollow else {"color": color}
        size = (trace.marker.size or 7) ** 2 * 0.6
        axes.scatter(x, y, s=size, marker=shape, zorder=3, alpha=trace.marker.opacity, **face, **style)
    if "text" in mode:
        places = trace.textposition
        places = [places] * len(x) if places is None or isinstance(places, str) else places
        for a, b, text, place in zip(x, y, trace.text, places, strict=True):
            _label(axes, (a, b), text, place or "middle right")


def _numeric(values: Any) -> bool:
    return not any(isinstance(value, str) for value in values)


def _label(axes: Axes, point: tuple[Any, Any], text: str, place: str) -> None:
    vertical, _, side = place.partition(" ")
    up = {"top": 8, "middle": 0, "bottom": -8}[vertical]
    along = {"left": -8, "center": 0, "right": 8}[side]
    align = {"left": "right", "center": "center", "right": "left"}[side]
    axes.annotate(
        text, point, (along, up), textcoords="offset points", fontsize=9, ha=align, va="center"
    )  # fmt: skip


def _bars(axes: Axes, trace: Any, figure: go.Figure) -> None:
    along = trace.orientation == "h"
    names, values = (trace.y, trace.x) if along else (trace.x, trace.y)
    group = [each for each in figure.data if each.type == "bar"]
    width = 0.75 / len(group)
    shift = (group.index(trace) - (len(group) - 1) / 2) * width
    places = numpy.arange(len(names)) + shift
    style = {"color": trace.marker.color, "label": trace.name if len(group) > 1 else None}
    if along:
        bars = axes.barh(places, values, width, **style)
        axes.set_yticks(range(len(names)), [_lines(name) for name in names])
    else:
        bars = axes.bar(places, values, width, **style)
        axes.set_xticks(range(len(names)), [_lines(name) for name in names])
        axes.tick_params(axis="x", rotation=20 if len(names) > 5 else 0)
    axes.bar_label(bars, labels=trace.text, padding=3, fontsize=9, bbox=BEHIND_TEXT)


def _heatmap(axes: Axes, trace: Any, figure: go.Figure) -> None:
    grids = [numpy.array(each.z, dtype=float) for each in figure.data]
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
        ticks = zip(axis.tickvals or (low, values.max()), axis.ticktext or (), strict=False)
        for value, text in [*ticks] or [(each, f"{each:.4g}") for each in (low, values.max())]:
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


def _across(axes: Axes, shape: Any) -> None:
    draw, at = (axes.axvline, shape.x0) if shape.x0 == shape.x1 else (axes.axhline, shape.y0)
    draw(at, color=shape.line.color, linestyle=STYLES[shape.line.dash], linewidth=1.8, label=shape.name)


def _finish(axes: Axes, layout: Any, number: str) -> None:
    """Titles, scales and ranges of one panel's axes."""
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        told = layout[f"{name}axis{number}"]
        axis.set_label_text(_lines(told.title.text or ""))
        if told.type == "log":
            getattr(axes, f"set_{name}scale")("log")
            axis.set_major_formatter(PLAIN)
            axis.set_minor_formatter(PLAIN)
        if told.tickformat and "%" in told.tickformat:
            axis.set_major_formatter(PercentFormatter(1.0))
        if told.range:
            getattr(axes, f"set_{name}lim")(told.range)
        elif told.rangemode == "tozero":
            getattr(axes, f"set_{name}lim")(0)


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
