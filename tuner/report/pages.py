"""Pages that need no other file, with live figures; beside them the figures as PNG."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from tuner.errors import EnvironmentTrouble, InputError, UnknownName
from tuner.python.tuned import Tuned
from tuner.report.ladder_tables import limits_text, rung_table, slower_texts
from tuner.report.rungs import Ladder
from tuner.report.study_view import ShowOptions, StudyView, reasons, recorded_study, view_of
from tuner.results.measurement import Outcome
from tuner.results.objectives import Front
from tuner.results.record import Record
from tuner.results.units import config_text, duration

if TYPE_CHECKING:
    import plotly.graph_objects as go

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
th { border-bottom: 2px solid var(--strong); } td { white-space: pre-line; } dt { font-weight: 600; }
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
#: What each figure of a study shows, above it.
EXPLANATIONS = {
    "history": "Each point is a trial; hover for its config. The line is the best so far.",
    "importance": "A parameter that explains much alone is worth a finer choice of values.",
    "pairs": "The best speed that was measured for each pair of values; empty where none was.",
    "parallel": "A line for each config. Drag along an axis to keep only some values; click to undo.",
    "failures": "Trials that were stopped early were slower than the best by far.",
    "time": "Compiling and the search go on beside the device: these add up to more than the wall time.",
}
#: Widths in pixels of figures whose labels need more room than most.
WIDTHS = {"pairs": 800, "parallel": 560, "ratios": 560}
#: Rows of the table of the fastest configs.
FASTEST = 10
#: What the columns of a ladder's table mean.
COLUMNS = {
    "time": "Median of one run, in rounds in which every step and the library take turns.",
    "speed": "Work of the problem over time: 2MNK flops, or the fewest bytes that must move.",
    "step x, total x": "Speed-up over the previous step, and over the first.",
    "of library": "Speed over the library's.",
    "of limit": "Speed over the limit by this device's measured bandwidth and multiply-adds (roofline); above "
    "100 % if a cache holds the data.",
    "noise": "Median absolute deviation of the rounds over their median, scaled to a standard deviation.",
    "error": "Largest and mean difference from a float64 reference, over that reference's root mean square.",
    "published": "A public report's figures for this step on its own hardware: compare ratios, not times.",
}


class Figures:
    """The extension point ``figures``: what the core shows of a study, and of a Pareto front."""

    @staticmethod
    def of_study(tuned: Tuned) -> dict[str, go.Figure]:
        """Figures by name; see `study_figures`."""
        return study_figures(view_of(tuned))

    @staticmethod
    def write_study(tuned: Tuned, folder: Path) -> list[Path]:
        """Writes the page and PNGs; see `write_study`."""
        return write_study(view_of(tuned), folder)

    @staticmethod
    def write_front(front: Front, champion: Record, folder: Path) -> Path:
        """Writes the plot of a front as PNG, named after problem and regime; see `written`."""
        problem = champion.problem
        sizes = "x".join(str(size) for _, size in problem.shape)
        arithmetic = problem.arithmetic.replace(" ", "-")
        parts = ("front", problem.operation, sizes, arithmetic, problem.layout, champion.regime)
        path = folder / ("-".join([*filter(None, parts), *front.objectives[1:]]) + ".png")
        with written(folder):
            from tuner.report.figures import front_figure
            from tuner.report.images import png

            path.write_bytes(png(front_figure(front, champion)))
        return path


def show(what: object, **options: Unpack[ShowOptions]) -> dict[str, Any]:
    """Figures of a study: history, importance, pairs, parallel, failures, time.

    Args:
        what: What `tuner.tune` returned, a problem in words, a `tuner.Problem`, or a study's name.
        options: See `ShowOptions`.

    Returns:
        Figures of Plotly by name; each can be shown in a notebook.

    Raises:
        NothingFound: Nothing is recorded of it.
        UnknownName: There is no such option.
    """
    for name in options:
        if name not in ShowOptions.__annotations__:
            raise UnknownName("option", name, ShowOptions.__annotations__)
    study = view_of(what) if isinstance(what, Tuned) else recorded_study(what, options)
    if options.get("folder"):
        write_study(study, Path(options["folder"]))
    return study_figures(study)


def study_figures(study: StudyView) -> dict[str, go.Figure]:
    """Figures of a study by name: history, importance, pairs, parallel, failures, time.

    Raises:
        EnvironmentTrouble: Plotly is not installed.
    """
    with written(None):
        from tuner.report.figures import figures

        return figures(study)


def write_study(study: StudyView, folder: Path) -> list[Path]:
    """Writes ``study.html`` and its figures as PNG; see `written`."""
    with written(folder):
        figures = study_figures(study)
        return _with_images(folder / "study.html", study_page(study, figures), figures)


def write_ladder(ladder: Ladder, folder: Path) -> list[Path]:
    """Writes ``index.html`` and its figures as PNG; see `written`."""
    with written(folder):
        from tuner.report.ladder_figures import ladder_figures

        figures = ladder_figures(ladder)
        return _with_images(folder / "index.html", ladder_page(ladder, figures), figures)


def write_comparison(compared: Mapping[str, Any], folder: Path) -> Path:
    """Writes ``compare.html``; see `written`.

    Args:
        compared: `tuner.report.comparing.Compared.to_json`.
        folder: Is made where it does not exist.
    """
    with written(folder):
        path = folder / "compare.html"
        path.write_text(comparison_page(compared), encoding="utf-8")
    return path


@contextlib.contextmanager
def written(folder: Path | None) -> Iterator[None]:
    """Makes a folder, and turns what can go wrong while figures are drawn and written into errors of users.

    Raises:
        InputError: The folder cannot be written.
        EnvironmentTrouble: A plotting library is not installed.
    """
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        yield
    except ImportError as error:
        raise EnvironmentTrouble(
            f"plots need matplotlib and plotly, which cannot be imported ({error}); install them"
        ) from error
    except OSError as error:
        raise InputError(
            f"-o takes a folder that can be written, got {folder} ({error}); choose another"
        ) from error


def _with_images(path: Path, html: str, figures: Mapping[str, go.Figure]) -> list[Path]:
    from tuner.report.images import png

    path.write_text(html, encoding="utf-8")
    paths = [path]
    for name, figure in figures.items():
        paths.append(path.with_name(f"{name}.png"))
        paths[-1].write_bytes(png(figure))
    return paths


def page(title: str, parts: Sequence[str]) -> str:
    """A page as HTML, with Plotly's script inside.

    Args:
        title: Its title, as plain text.
        parts: What it shows, as HTML.
    """
    from plotly.offline import get_plotlyjs

    return "\n".join(
        [
            "<!doctype html>", '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE}</style>",
            f"<script>{get_plotlyjs()}</script></head><body>",
            f"<h1>{escape(title)}</h1>", *parts, f"<script>{DRESS}</script>", "</body></html>", "",
        ]
    )  # fmt: skip


def _figure_html(figure: go.Figure, name: str) -> str:
    """A figure under its title, which becomes a heading; it scrolls where the screen is narrower."""
    import plotly.graph_objects as go

    heading = escape(figure.layout.title.text or "")
    config = {"responsive": True, "displaylogo": False}
    shown = go.Figure(figure).update_layout(title_text="", margin_t=50)
    html = shown.to_html(full_html=False, include_plotlyjs=False, div_id=name, config=config)
    explanation = f"<p>{EXPLANATIONS[name]}</p>" if name in EXPLANATIONS else ""
    least_px = WIDTHS.get(name, 480)
    return (
        f"<h2>{heading}</h2>{explanation}"
        f'<div class="scroll"><div style="min-width: {least_px}px">{html}</div></div>'
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table of HTML; numbers stand on the right."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _cell(value: Any) -> str:
    kind = ' class="number"' if isinstance(value, int | float) else ""
    if isinstance(value, float):
        value = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"<td{kind}>{escape(str(value))}</td>"


def _meanings(meanings: Mapping[str, str]) -> str:
    items = (f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in meanings.items())
    return f"<dl>{''.join(items)}</dl>"


def study_page(study: StudyView, figures: Mapping[str, go.Figure]) -> str:
    """A study's tables and figures as HTML."""
    tables = study_tables(study)
    return page(study.title, [tables, *(_figure_html(figure, name) for name, figure in figures.items())])


def study_tables(study: StudyView) -> str:
    """The tables of a study as HTML."""
    timed = [record for record in study.of_kernel if record.measurement.outcome is Outcome.MEASURED]
    rows = [
        (
            study.speed(record.measurement.time_s or 1), (record.measurement.time_s or 0) * 1e6,
            record.measurement.noise * 100, config_text(record.config),
        )
        for record in sorted(timed, key=lambda record: record.measurement.time_s or 0.0)[:FASTEST]
    ]  # fmt: skip
    shown = [_summary(study)]
    if rows:
        shown += [
            f"<h2>The fastest trials of {escape(study.kernel)}</h2>",
            _table((study.unit, "time, us", "noise, %", "config"), rows),
        ]
    failed = [(count, outcome, why) for (outcome, why), count in reasons(study).items() if why]
    if failed:
        shown += ["<h2>What failed, and why</h2>", _table(("trials", "outcome", "reason"), failed)]
    return "\n".join(shown)


def _summary(study: StudyView) -> str:
    lines = [f"{len(study.trials)} trials"]
    if study.trials:
        first = study.trials[0]
        lines.append(f"{first.device.name}, timed {first.regime}, {first.measured_at[:10]}")
    for name, record in (("champion", study.champion), ("library", study.baseline)):
        if record is not None:
            time_s = record.measurement.time_s or 0.0
            config = f" {config_text(record.config)}" if record.config else ""
            speed = f"{study.speed(time_s):.4g} {study.unit}, " if time_s else ""
            lines.append(f"{name}: {record.kernel}{config}: {speed}{duration(time_s)}")
    return f"<p>{'<br>'.join(map(escape, lines))}</p>"


def comparison_page(compared: Mapping[str, Any]) -> str:
    """Two sides compared, as HTML."""
    from tuner.report.figures import comparison

    rows = [
        (
            f"{row['problem']}, {row['regime']}", row["ratio"], row["low"], row["high"], row["verdict"],
            row["one_s"] * 1e6, row["other_s"] * 1e6, row["library_ratio"] or "",
            row["one"], "the same" if row["same_config"] else row["other"],
        )
        for row in compared["problems"]
    ]  # fmt: skip
    columns = ("problem", "speed, B over A", "low", "high", "verdict", "A, us", "B, us", "library", "A", "B")
    counts = ", ".join(f"{count} {name}" for name, count in compared["counts"].items() if count)
    alone = [
        f"<p>Only {escape(compared[side])}: {escape('; '.join(compared[f'only_{side}']))}</p>"
        for side in ("one", "other")
        if compared[f"only_{side}"]
    ]
    about = (
        f"<p>A is {escape(compared['one'])}, B is {escape(compared['other'])}. A ratio above 1 says that B "
        f"is faster; intervals are of 95 %. Geometric mean {compared['mean_ratio']:.3f}: {counts}.</p>"
    )
    ratios = _figure_html(comparison(compared), "ratios")
    return page(
        f"{compared['other']} against {compared['one']}", [about, ratios, _table(columns, rows), *alone]
    )


def ladder_page(ladder: Ladder, figures: Mapping[str, go.Figure]) -> str:
    """A ladder as HTML.

    Args:
        ladder: What was climbed.
        figures: Figures by name.
    """
    parts = [_about(ladder), *(f"<p>{escape(note)}</p>" for note in ladder.plan.notes)]
    for problem in dict.fromkeys(rung.problem for rung in ladder.rungs):
        parts += [f"<h2>{escape(str(problem))}</h2>", _table(*rung_table(ladder, problem))]
        parts += [f"<p>{escape(text)}</p>" for text in slower_texts(ladder, problem)]
    parts += [_figure_html(figure, name) for name, figure in figures.items()]
    lessons = {rung.step.kernel.name: rung.step.lesson or rung.step.kernel.idea for rung in ladder.rungs}
    if lessons:
        parts += ["<h2>What each step is about</h2>", _meanings(lessons)]
    return page(ladder.plan.title, [*parts, "<h2>What the columns mean</h2>", _meanings(COLUMNS)])


def _about(ladder: Ladder) -> str:
    device, plan = ladder.device, ladder.plan
    versions = (f"{name} {version}" for name, version in sorted(ladder.versions.items()) if name != "driver")
    lines = [
        f"{device.name}, driver {device.driver or 'unknown'}",
        ", ".join(versions),
        f"{ladder.regime} caches, {ladder.measured_at[:19].replace('T', ' ')} UTC",
        limits_text(ladder.limits),
        f"Reproduces: {plan.source} ({plan.hardware})" if plan.source else "",
    ]
    return f"<p>{'<br>'.join(escape(line) for line in lines if line)}</p>"
