"""``tuner show``, and pages of studies, ladders and fronts, which need no other file.

It implements the extension point ``figures``: what others show of a study, a device and a Pareto front.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli import options as cli
from tuner.cli.formatting import pairs, table
from tuner.errors import InputError
from tuner.python.tuned import Tuned
from tuner.report import study_view
from tuner.report.ladder_plan import lesson_of
from tuner.report.ladder_result import Ladder
from tuner.report.study_view import StudyView, recorded_study, time_of, view_of
from tuner.results.measurement import Outcome
from tuner.results.objectives import Front
from tuner.results.record import Champion, Record
from tuner.results.units import config_text, duration

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: What each figure shows, above it.
EXPLANATIONS = {
    "history": "Each point is a trial; hover for its config. The line is the best so far.",
    "importance": "A parameter that explains much alone is worth a finer choice of values.",
    "pairs": "The best speed that was measured for each pair of values; empty where none was.",
    "parallel": "A line for each config. Drag along an axis to keep only some values; click to undo.",
    "failures": "Trials that were stopped early were slower than the best by far.",
    "speedups": "A point for each problem: ours is faster above the line; hollow ones are provisional.",
    "map": "A point for each problem that has the sizes m and n; hover for champion, time and ratio.",
    "roofline": "Champions by flops per byte that must move, below the limits of the device.",
    "time": "Compiling and the search go on beside the device: these add up to more than the wall time.",
}
#: Rows of the table of the fastest configs.
FASTEST = 10
#: What the toolbar of a figure has: a camera that saves it; nothing that asks another site.
TOOLBAR = {
    "responsive": True, "displaylogo": False, "showSendToCloud": False,
    "toImageButtonOptions": {"scale": 2}, "modeBarButtonsToRemove": ["lasso2d", "select2d"],
}  # fmt: skip

Figures = Mapping[str, "go.Figure"]


def show(
    what: object, *, device: str = "", regime: str = "", folder: str | Path = "", db: str = ""
) -> dict[str, Any]:
    """Figures of a study: history, importance, pairs, parallel, failures, time.

    Args:
        what: What `tuner.tune` returned, a problem in words, a `tuner.Problem`, or a study's name.
        device: Name or uuid of the device, where a problem has several studies; by default of the latest.
        regime: How times were taken; by default that of the latest study.
        folder: Where to write ``study.html``; by default nothing is written.
        db: URL of the database; by default that of ``TUNER_DB``, else ``studies.db`` in this folder.

    Returns:
        Figures of Plotly by name; each can be shown in a notebook.

    Raises:
        NothingFound: Nothing is recorded of it.
    """
    study = view_of(what) if isinstance(what, Tuned) else recorded_study(what, device, regime, db)
    if folder:
        write_study(study, Path(folder))
    return study_figures(study)


def study_figures(study: StudyView) -> dict[str, go.Figure]:
    """Figures of a study by name: history, importance, pairs, parallel, failures, time."""
    from tuner.report.figures import figures

    return figures(study)


def of_study(tuned: Tuned) -> dict[str, go.Figure]:
    """Figures of a study that `tuner.tune` returned, by name."""
    return study_figures(view_of(tuned))


def of_records(title: str, records: Sequence[Record], champion: Champion | None) -> list[dict[str, Any]]:
    """Figures of a problem's records, for a page that draws them; see `for_page`.

    Parallel coordinates are left out: their library compiles texts as scripts, which the service forbids.
    """
    figures = study_figures(StudyView.of(title, records, champion))
    return for_page({name: figure for name, figure in figures.items() if name != "parallel"})


def of_champions(
    champions: Sequence[Champion], limits: Mapping[str, float] | None = None
) -> list[dict[str, Any]]:
    """Champions of a device, at least one, beside the library; with limits, below these and over sizes, too."""
    from tuner.report import figures

    return for_page(figures.of_champions(champions, limits))


def for_page(figures: Figures) -> list[dict[str, Any]]:
    """Figures as JSON objects: ``name``, ``title``, what it is ``about``; Plotly's ``data`` and ``layout``."""
    return [
        {"name": name, "title": figure.layout.title.text or "", "about": EXPLANATIONS.get(name, "")}
        | json.loads(_untitled(figure).to_json())
        for name, figure in figures.items()
    ]


def _untitled(figure: go.Figure) -> go.Figure:
    """A figure without its title, which the page has as a heading."""
    import plotly.graph_objects as go

    return go.Figure(figure).update_layout(title_text="", margin_t=50)


# ---- pages in files


def write_study(study: Tuned | StudyView, folder: Path) -> list[Path]:
    """Writes ``study.html``: a study's tables and figures."""
    view = view_of(study) if isinstance(study, Tuned) else study
    page = folder / "study.html"
    return [write_page(page, "study", study=view, tables=study_tables(view), figures=study_figures(view))]


def study_tables(study: StudyView) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, columns and rows of each table that has a row, for terminal and page."""
    timed = [trial for trial in study.of_kernel if trial.measurement.outcome is Outcome.MEASURED]
    fastest = [
        [
            f"{study.speed(trial):.4g}", duration(time_of(trial)), f"{trial.measurement.noise:.1%}",
            config_text(trial.config),
        ]
        for trial in sorted(timed, key=time_of)[:FASTEST]
    ]  # fmt: skip
    shares = [[name, f"{share:.1%}"] for name, share in study_view.importance(study).items()]
    failed = [[str(count), why] for why, count in study_view.reasons(study).items()]
    spent = [[name, f"{seconds:.1f} s"] for name, seconds in study_view.seconds_by_stage(study).items()]
    tables = [
        (f"The fastest trials of {study.kernel}", [study.unit, "time", "noise", "config"], fastest),
        (f"What matters in {study.kernel}", ["parameter", "share of variance it explains alone"], shares),
        ("What was not measured, and why", ["trials", "why"], failed),
        ("Where the time of trials went", ["stage", "seconds"], spent),
    ]
    return [shown for shown in tables if shown[2]]


def write_ladder(ladder: Ladder, folder: Path) -> Path:
    """Writes ``index.html``: a ladder's figures and tables; see `write_study`."""
    from tuner.report.figures import ladder_figures

    kernels = [rung.kernel for rung in ladder.rungs]
    lessons = {kernel.name: lesson_of(kernel, "lesson") or kernel.idea for kernel in kernels}
    figures = ladder_figures(ladder)
    return write_page(folder / "index.html", "ladder", ladder=ladder, figures=figures, lessons=lessons)


def write_front(front: Front, champion: Record, folder: Path) -> Path:
    """Writes the plot of a front as a page, named after problem and regime; see `write_study`."""
    from tuner.report.figures import front_figures

    problem = champion.problem
    words = re.findall(r"[\w.]+", f"{problem} {champion.regime} {' '.join(front.objectives[1:])}")
    name = "-".join(["front", *words])
    title = f"{problem} on {champion.device.name}, {champion.regime}"
    return write_page(folder / f"{name}.html", "report", figures=front_figures(front), title=title)


def write_page(path: Path, template: str, *, figures: Figures, **values: Any) -> Path:
    """Writes a page from a template, with Plotly's script inside."""
    from jinja2 import Environment, PackageLoader
    from plotly.offline import get_plotlyjs

    environment = Environment(loader=PackageLoader("tuner.report"), autoescape=True)
    drawn = {
        name: _untitled(figure).to_html(full_html=False, include_plotlyjs=False, div_id=name, config=TOOLBAR)
        for name, figure in figures.items()
    }
    html = environment.get_template(f"{template}.html").render(
        values, figures=figures, drawn=drawn, about=EXPLANATIONS, plotly=get_plotlyjs()
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html, encoding="utf-8")
    return path


# ---- the command


@click.command("show")
@click.argument("what", metavar="STUDY|PROBLEM...", nargs=-1, required=True, shell_complete=cli.OPERATION)
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Set a dim of FILE.py by name.")
@cli.device_option("Name or uuid of the device; default: of the latest study.")
@click.option("--regime", default="", help="How times were taken; default: of the latest study.")
@cli.folder_option("Write study.html to this folder.")
@cli.database_option
def show_command(
    what: tuple[str, ...], sets: tuple[str, ...], device: str, regime: str, folder: Path | None, db: str
) -> None:
    """Show what a study saw: speed by trial, what matters, what failed, where the time went.

    PROBLEM is e.g. "gemm 1024 1024 1024", or FILE.py with --set; STUDY is a study's name as records have it.
    With -o, one page that can be hovered and zoomed; its camera saves a figure as PNG. No device is touched.
    """
    if folder is not None:
        cli.writable_folder(folder)
    named: object = " ".join(what)
    if what[0].endswith(".py"):
        named = cli.parse_problem(what[0], what[1:], sets, "", "")[1]
    elif sets:
        raise InputError(f"--set goes with FILE.py, got it with {named!r}; write sizes in order")
    study = recorded_study(named, device, regime, db)
    if folder is not None:
        click.echo(str(write_study(study, folder)[0]))
        return
    pairs(study.title, study.summary())
    for shown in study_tables(study):
        table(*shown)
