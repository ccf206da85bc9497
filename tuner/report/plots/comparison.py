"""Two sides compared, as one page that needs no other file."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import plotly.graph_objects as go

from tuner.report.plots import live_page
from tuner.report.plots.live_page import cells, drawn

#: Verdict of the second side -> colour.
COLOURS = {"faster": "#2a9d5c", "same": "#9aa5a8", "slower": "#c1666b", "ambiguous": "#d9a441"}


def figure(compared: Mapping[str, Any]) -> go.Figure:
    """Ratios with their intervals, a line for each problem, those that changed most on top.

    Args:
        compared: `tuner.report.comparing.Compared.to_json`.
    """
    found = go.Figure()
    for verdict, colour in COLOURS.items():
        some = [each for each in compared["problems"] if each["verdict"] == verdict]
        if some:
            found.add_scatter(
                x=[each["ratio"] for each in some], y=[f"{each['problem']}, {each['regime']}" for each in some],
                mode="markers", name=verdict, marker={"color": colour, "size": 9},
                error_x={
                    "type": "data", "symmetric": False, "color": colour,
                    "array": [each["high"] - each["ratio"] for each in some],
                    "arrayminus": [each["ratio"] - each["low"] for each in some],
                },
                customdata=[[each["one"], each["other"]] for each in some],
                hovertemplate="%{y}<br>%{x:.3f} x<br>A: %{customdata[0]}<br>B: %{customdata[1]}<extra></extra>",
            )  # fmt: skip
    order = [f"{each['problem']}, {each['regime']}" for each in compared["problems"]]
    found.add_vline(x=1, line_dash="dash", line_color="#5f6b6d")
    found.update_yaxes(categoryorder="array", categoryarray=order[::-1], automargin=True)
    found.update_xaxes(title=f"time of {compared['one']} over time of {compared['other']}", type="log")
    found.update_layout(
        template="plotly_white", height=160 + 26 * len(order), margin={"t": 40},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
    )  # fmt: skip
    return found


def page(compared: Mapping[str, Any]) -> str:
    """The page as HTML, with Plotly's script inside."""
    title = f"{compared['other']} against {compared['one']}"
    rows = [
        (
            f"{each['problem']}, {each['regime']}", each["ratio"], each["low"], each["high"], each["verdict"],
            each["one_s"] * 1e6, each["other_s"] * 1e6, each["library_ratio"] or "",
            each["one"], "the same" if each["same_config"] else each["other"],
        )
        for each in compared["problems"]
    ]  # fmt: skip
    columns = ("problem", "speed, B over A", "low", "high", "verdict", "A, us", "B, us", "library", "A", "B")
    counts = ", ".join(f"{count} {name}" for name, count in compared["counts"].items() if count)
    alone = "".join(
        f"<p>Only {escape(compared[side])}: {escape('; '.join(compared[f'only_{side}']))}</p>"
        for side in ("one", "other")
        if compared[f"only_{side}"]
    )
    about = (
        f"<p>A is {escape(compared['one'])}, B is {escape(compared['other'])}. A ratio above 1 says that B "
        f"is faster; intervals are of 95 %. Geometric mean {compared['mean_ratio']:.3f}: {counts}.</p>"
    )
    ratios = drawn(figure(compared), "ratios", 560)
    return live_page.page(title, [about, ratios, cells(columns, rows), alone])
