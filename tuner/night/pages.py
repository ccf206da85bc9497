"""A night's report as one HTML page that needs no other file, as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Plots on a page: those with alerts first.
MOST_PLOTS = 24
_TEMPLATES = Path(__file__).with_name("templates")
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_BUTTONS = {"displaylogo": False}
#: Colours of champion, the one before, and the library.
COLOURS = {"champion": "#0b6e8a", "before": "#9aa5a8", "library": "#c8553d"}


def write(report: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes ``night-DATE.html``, ``.md`` and ``.json``, replacing those of the same night.

    Args:
        report: The report, as `tuner.night.reporting.night_report` gives it.
        folder: Made if it does not exist.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"night-{report['begun_at'][:19].replace(':', '')}"
    texts = {".html": html(report), ".md": markdown(report), ".json": json.dumps(report, indent=1) + "\n"}
    paths = []
    for ending, text in texts.items():
        path = folder / (name + ending)
        part = path.with_name(f".{path.name}.part")
        part.write_text(text, encoding="utf-8")
        part.replace(path)
        paths.append(path)
    return paths


def html(report: Mapping[str, Any]) -> str:
    """The page, with its plots and their code inside."""
    return _rendered("night.html", report, plots=_plots(report))


def markdown(report: Mapping[str, Any]) -> str:
    """The same without plots."""
    text = _rendered("night.md", report)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _rendered(name: str, report: Mapping[str, Any], **more: Any) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=name.endswith(".html"), trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters |= {
        "time": _time,
        "percent": _percent,
        "config": _config,
        "when": _when,
        "ratio": _ratio,
    }
    return environment.get_template(name).render(report=report, **more)


def _time(seconds: float | None) -> str:
    if not seconds:
        return "-"
    scale, unit = next((each for each in _UNITS if seconds >= each[0]), _UNITS[-1])
    return f"{seconds / scale:.4g} {unit}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:+.2%}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} x"


def _when(text: str | None) -> str:
    return (text or "-")[:16].replace("T", " ")


def _config(champion: Mapping[str, Any] | None) -> str:
    if champion is None:
        return "-"
    return " ".join([champion["kernel"], *(f"{name}={value}" for name, value in champion["config"].items())])


def _plots(report: Mapping[str, Any]) -> list[str]:
    """Plots of the sentinels' histories as parts of a page; the first brings Plotly along."""
    import plotly.graph_objects as go

    alerted = {each["problem"] for alert in report["alerts"] for each in alert["problems"]}
    series = [each for each in report["history"] if len(each["nights"]) > 1]
    series.sort(key=lambda each: each["problem"] not in alerted)
    found = []
    for number, each in enumerate(series[:MOST_PLOTS]):
        figure = go.Figure(layout=_layout(each))
        for name, colour in COLOURS.items():
            times = [night[name] for night in each["nights"]]
            known = [time_s for time_s in times if time_s]
            if known:
                middle = sorted(known)[len(known) // 2]
                figure.add_scatter(
                    x=[night["at"] for night in each["nights"]],
                    y=[100 * (time_s / middle - 1) if time_s else None for time_s in times],
                    customdata=[_time(time_s) for time_s in times], name=name, mode="lines+markers",
                    line={"color": colour}, hovertemplate="%{x}<br>%{customdata}, %{y:.2f} %",
                )  # fmt: skip
        for change in each["changes"]:
            figure.add_vline(x=change["at"], line={"color": "#1d2b30", "dash": "dot", "width": 1})
        found.append(
            figure.to_html(full_html=False, include_plotlyjs=number == 0, config={"displaylogo": False})
        )
    return found


def _layout(series: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "title": {"text": f"{series['problem']} ({series['board'][:12]})", "font": {"size": 14}},
        "yaxis": {"title": "% of its median time", "zeroline": True, "zerolinecolor": "#d5dcde"},
        "height": 300, "margin": {"l": 60, "r": 16, "t": 44, "b": 40}, "template": "plotly_white",
        "legend": {"orientation": "h", "y": 1.15, "x": 1, "xanchor": "right"},
    }  # fmt: skip


def headline(report: Mapping[str, Any]) -> str:
    """The report in a sentence."""
    alerts, behind = len(report["alerts"]), len(report["behind"])
    parts = [f"{alerts} alert{'s' if alerts != 1 else ''}"] if alerts else ["no alerts"]
    parts += [f"{behind} champion{'s' if behind != 1 else ''} behind the one before"] if behind else []
    parts += [f"{len(report['faster'])} faster"] if report["faster"] else []
    return ", ".join([*parts, f"{len(report['sentinels'])} sentinels"])
