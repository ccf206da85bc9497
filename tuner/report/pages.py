"""``tuner show``; pages that need no other file, with live figures; beside them the figures as PNG."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.formatting import pairs, table
from tuner.cli.options import (
    OPERATION,
    database_option,
    device_option,
    folder_option,
    parse_problem,
    writable_folder,
)
from tuner.errors import EnvironmentTrouble, InputError
from tuner.python.tuned import Tuned
from tuner.report.ladder_plan import lesson_of
from tuner.report.ladder_result import Ladder
from tuner.report.study_view import (
    StudyView,
    ended,
    importance,
    reasons,
    recorded_study,
    seconds_by_stage,
    time_of,
    view_of,
)
from tuner.results.measurement import Outcome
from tuner.results.objectives import Front
from tuner.results.record import Champion, Record
from tuner.results.units import config_text

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: What each figure of a study shows, above it.
EXPLANATIONS = {
    "history": "Each point is a trial; hover for its config. The line is the best so far.",
    "importance": "A parameter that explains much alone is worth a finer choice of values.",
    "pairs": "The best speed that was measured for each pair of values; empty where none was.",
    "parallel": "A line for each config. Drag along an axis to keep only some values; click to undo.",
    "failures": "Trials that were stopped early were slower than the best by far.",
    "roofline": "Champions by flops per byte that must move, below the limits of the device.",
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

#: A part of a page: ``heading``; ``lines``, ``columns`` and ``rows``, ``figure`` and ``width``; ``meanings``.
Block = dict[str, Any]


class FigureWriter:
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
    def of_records(title: str, records: Sequence[Record], champion: Champion | None) -> list[dict[str, Any]]:
        """Figures of a problem's records, for a page that draws them; see `for_page`."""
        return for_page(study_figures(StudyView.of(title, records, champion)))

    @staticmethod
    def of_champions(champions: Sequence[Champion], limits: Mapping[str, float]) -> list[dict[str, Any]]:
        """Champions of a device below its limits, for a page that draws them; see `for_page`."""
        with written(None):
            from tuner.report.figures import roofline

            return for_page({"roofline": roofline(champions, limits)})

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


def show(
    what: object, *, device: str = "", regime: str = "", folder: str | Path = "", db: str = ""
) -> dict[str, Any]:
    """Figures of a study: history, importance, pairs, parallel, failures, time.

    Args:
        what: What `tuner.tune` returned, a problem in words, a `tuner.Problem`, or a study's name.
        device: Name or uuid of the device, where a problem has several studies; by default of the latest.
        regime: How times were taken; by default that of the latest study.
        folder: Where to write ``study.html`` and PNGs; by default nothing is written.
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
        from tuner.report.figures import ladder_figures

        figures = ladder_figures(ladder)
        return _with_images(folder / "index.html", ladder_page(ladder, figures), figures)


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
    images = {path.with_name(f"{name}.png"): figure for name, figure in figures.items()}
    for image, figure in images.items():
        image.write_bytes(png(figure))
    return [path, *images]


def page(title: str, blocks: Sequence[Block]) -> str:
    """A page as HTML, with Plotly's script inside."""
    from jinja2 import Environment, PackageLoader
    from plotly.offline import get_plotlyjs

    environment = Environment(loader=PackageLoader("tuner.report"), autoescape=True)
    template = environment.get_template("report.html")
    return template.render(title=title, blocks=blocks, plotly=get_plotlyjs())


def for_page(figures: Mapping[str, go.Figure]) -> list[dict[str, Any]]:
    """Figures as JSON objects: ``name``, ``title``, what it is ``about``; Plotly's ``data`` and ``layout``."""
    return [
        {"name": name, "title": figure.layout.title.text or "", "about": EXPLANATIONS.get(name, "")}
        | json.loads(_untitled(figure).to_json())
        for name, figure in figures.items()
    ]


def _untitled(figure: go.Figure) -> go.Figure:
    import plotly.graph_objects as go

    return go.Figure(figure).update_layout(title_text="", margin_t=50)


def figure_block(figure: go.Figure, name: str) -> Block:
    """A figure under its title, which becomes a heading; it scrolls where the screen is narrower."""
    config = {"responsive": True, "displaylogo": False}
    html = _untitled(figure).to_html(full_html=False, include_plotlyjs=False, div_id=name, config=config)
    lines = [EXPLANATIONS[name]] if name in EXPLANATIONS else []
    width = WIDTHS.get(name, 480)
    return {"heading": figure.layout.title.text, "lines": lines, "figure": html, "width": width}


def study_page(study: StudyView, figures: Mapping[str, go.Figure]) -> str:
    """A study's tables and figures as HTML."""
    timed = [record for record in study.of_kernel if record.measurement.outcome is Outcome.MEASURED]
    fastest = [
        (study.speed(record), time_of(record) * 1e6, record.measurement.noise * 100, config_text(record.config))
        for record in sorted(timed, key=time_of)[:FASTEST]
    ]
    failed = [(count, outcome, why) for (outcome, why), count in reasons(study).items() if why]
    columns = (study.unit, "time, us", "noise, %", "config")
    blocks: list[Block] = [
        {"lines": [f"{name}: {text}" for name, text in study.summary()]},
        {"heading": f"The fastest trials of {study.kernel}", "columns": columns, "rows": fastest},
        {"heading": "What failed, and why", "columns": ("trials", "outcome", "reason"), "rows": failed},
        *(figure_block(figure, name) for name, figure in figures.items()),
    ]
    return page(study.title, [block for block in blocks if block.get("rows", True)])


def ladder_page(ladder: Ladder, figures: Mapping[str, go.Figure]) -> str:
    """A ladder as HTML.

    Args:
        ladder: What was climbed.
        figures: Figures by name.
    """
    device, plan = ladder.device, ladder.plan
    versions = (f"{name} {version}" for name, version in sorted(ladder.versions.items()) if name != "driver")
    about = [
        f"{device.name}, driver {device.driver or 'unknown'}",
        ", ".join(versions),
        f"{ladder.regime} caches, {ladder.measured_at[:19].replace('T', ' ')} UTC",
        str(ladder.limits),
        *plan.remarks,
    ]
    blocks: list[Block] = [{"lines": [*filter(None, about)]}]
    for problem in ladder.problems:
        columns, rows = ladder.table(problem)
        blocks.append({"heading": str(problem), "columns": columns, "rows": rows})
        blocks += [{"lines": [text]} for text in ladder.slower_texts(problem)]
    blocks += [figure_block(figure, name) for name, figure in figures.items()]
    kernels = [rung.step.kernel for rung in ladder.rungs]
    lessons = {kernel.name: lesson_of(kernel, "lesson") or kernel.idea for kernel in kernels}
    blocks.append({"heading": "What each step is about", "meanings": lessons})
    return page(plan.title, [*blocks, {"heading": "What the columns mean", "meanings": COLUMNS}])


# ---- the command


@click.command("show")
@click.argument("what", metavar="STUDY|PROBLEM...", nargs=-1, required=True, shell_complete=OPERATION)
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Set a dim of FILE.py by name.")
@device_option("Name or uuid of the device; default: of the latest study.")
@click.option("--regime", default="", help="How times were taken; default: of the latest study.")
@folder_option("Write study.html and PNGs to this folder.")
@database_option
def show_command(
    what: tuple[str, ...], sets: tuple[str, ...], device: str, regime: str, folder: Path | None, db: str
) -> None:
    """Show what a study saw: speed by trial, what matters, what failed, where the time went.

    PROBLEM is e.g. "gemm 1024 1024 1024", or FILE.py with --set; STUDY is a study's name as records have it.
    With -o, one page that can be hovered and zoomed, and a PNG of each figure. No device is touched.
    """
    if folder is not None:
        writable_folder(folder)
    named: object = " ".join(what)
    if what[0].endswith(".py"):
        named = parse_problem(what[0], what[1:], sets, "", "")[1]
    elif sets:
        raise InputError(f"--set goes with FILE.py, got it with {named!r}; write sizes in order")
    study = recorded_study(named, device, regime, db)
    if folder is None:
        _print_tables(study)
        return
    for path in write_study(study, folder):
        click.echo(str(path))


def _print_tables(study: StudyView) -> None:
    pairs(study.title, study.summary())
    tables = {
        (f"What matters in {study.kernel}", "parameter", "share of variance it explains alone"): [
            (name, f"{share:.1%}") for name, share in importance(study).items()
        ],
        ("What was not measured, and why", "trials", "why"): [
            (str(count), ended(outcome, why, 120)) for (outcome, why), count in reasons(study).items()
        ],
        ("Where the time of trials went", "stage", "seconds"): [
            (name, f"{seconds:.1f} s") for name, seconds in seconds_by_stage(study).items()
        ],
    }
    for (title, *columns), rows in tables.items():
        if rows:
            table(title, columns, rows)
