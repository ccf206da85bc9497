"""Pages whose figures can be hovered and zoomed, in one file each: bright or dark, wide or narrow."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from plotly.offline import get_plotlyjs

STYLE = """
:root { color-scheme: light dark; --ink: #1d2b30; --paper: #ffffff; --line: #e2e8ea; --strong: #9aa5a8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #dfe7ea; --paper: #14191b; --line: #2d373b; --strong: #64757b; }
}
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; }
body { padding: 0 1rem; color: var(--ink); background: var(--paper); overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.1rem; margin: 2rem 0 0.3rem; }
table { border-collapse: collapse; font-size: 0.9rem; overflow-wrap: normal; }
td, th { padding: 0.25rem 0.7rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { border-bottom: 2px solid var(--strong); }
.scroll { overflow-x: auto; } .number { text-align: right; font-variant-numeric: tabular-nums; }
code { font-size: 0.85rem; } p { margin: 0.3rem 0; }
"""
#: Gives figures the page's colours, again if the user changes them.
DRESS = """
const dress = () => {
  const style = getComputedStyle(document.documentElement);
  const [ink, line] = ["--ink", "--line"].map((name) => style.getPropertyValue(name).trim());
  for (const figure of document.querySelectorAll(".plotly-graph-div")) {
    const change = { "font.color": ink, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)" };
    for (const axis of Object.keys(figure.layout).filter((name) => /^[xy]axis[0-9]*$/.test(name))) {
      change[axis + ".gridcolor"] = change[axis + ".zerolinecolor"] = line;
    }
    Plotly.relayout(figure, change);
  }
};
dress();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", dress);
"""


def page(title: str, parts: Sequence[str]) -> str:
    """A page as HTML, with Plotly's script inside.

    Args:
        title: Its title, as plain text.
        parts: What it shows, as HTML.
    """
    return "\n".join(
        [
            "<!doctype html>", '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE}</style>",
            f"<script>{get_plotlyjs()}</script></head><body>",
            f"<h1>{escape(title)}</h1>", *parts, f"<script>{DRESS}</script>", "</body></html>", "",
        ]
    )  # fmt: skip


def drawn(figure: Any, name: str, least_px: int = 480) -> str:
    """A figure as HTML, without its title, which the page gives; it scrolls where the screen is narrower.

    Args:
        figure: Of Plotly.
        name: Id of its element.
        least_px: Width below which labels would overlap.
    """
    figure.update_layout(title_text="", margin_t=50)
    config = {"responsive": True, "displaylogo": False}
    html = figure.to_html(full_html=False, include_plotlyjs=False, div_id=name, config=config)
    return f'<div class="scroll"><div style="min-width: {least_px}px">{html}</div></div>'


def cells(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table of HTML; numbers stand on the right."""
    head = "".join(f"<th>{escape(each)}</th>" for each in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _cell(value: Any) -> str:
    if isinstance(value, float):
        shown = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        return f'<td class="number">{shown}</td>'
    kind = ' class="number"' if isinstance(value, int) else ""
    return f"<td{kind}>{escape(str(value))}</td>"
