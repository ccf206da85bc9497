"""Pages that need no other file, with live figures; beside them the figures as PNG."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from tuner.errors import EnvironmentTrouble, InputError, UnknownName
from tuner.python.tuned import Tuned
from tuner.report.ladder_result import Ladder, limits_text, rung_table, slower_texts
from tuner.report.study_view import ShowOptions, StudyView, reasons, recorded_study, view_of
from tuner.results.measurement import Outcome
from tuner.results.objectives import Front
from tuner.results.record import Champion, Record, Role
from tuner.results.units import config_text, duration

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
        trials = [record for record in records if record.role is not Role.BASELINE]
        libraries = [record for record in records if record.role is Role.BASELINE]
        library = champion.baseline if champion is not None else None
        best = champion.record if champion is not None else None
        return for_page(
            study_figures(StudyView(title, trials, library or next(reversed(libraries), None), best))
        )

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


def _figure_block(figure: go.Figure, name: str) -> Block:
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
        (
            study.speed(record.measurement.time_s or 1), (record.measurement.time_s or 0) * 1e6,
            record.measurement.noise * 100, config_text(record.config),
        )
        for record in sorted(timed, key=lambda record: record.measurement.time_s or 0.0)[:FASTEST]
    ]  # fmt: skip
    failed = [(count, outcome, why) for (outcome, why), count in reasons(study).items() if why]
    blocks: list[Block] = [{"lines": _summary(study)}]
    if fastest:
        table: Block = {"columns": (study.unit, "time, us", "noise, %", "config"), "rows": fastest}
        blocks.append({"heading": f"The fastest trials of {study.kernel}", **table})
    if failed:
        table = {"columns": ("trials", "outcome", "reason"), "rows": failed}
        blocks.append({"heading": "What failed, and why", **table})
    return page(study.title, [*blocks, *(_figure_block(figure, name) for name, figure in figures.items())])


def _summary(study: StudyView) -> list[str]:
    lines = [f"{len(study.trials)} trials"]
    if study.trials:
        first = study.trials[0]
        lines.append(f"{first.device.name}, timed {first.regime}, {first.measured_at[:10]}")
    for name, record in (("champion", study.champion), ("library", study.baseline)):
        if record is not None:
            time_s = record.measurement.time_s or 0.0
            speed = f"{study.speed(time_s):.4g} {study.unit}, " if time_s else ""
            lines.append(f"{name}: {record.kernel} {config_text(record.config)}: {speed}{duration(time_s)}")
    return lines


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
    about = (
        f"A is {compared['one']}, B is {compared['other']}. A ratio above 1 says that B is faster; intervals "
        f"are of 95 %. Geometric mean {compared['mean_ratio']:.3f}: {counts}."
    )
    alone = [
        {"lines": [f"Only {compared[side]}: {'; '.join(compared[f'only_{side}'])}"]}
        for side in ("one", "other")
        if compared[f"only_{side}"]
    ]
    ratios = _figure_block(comparison(compared), "ratios")
    blocks = [{"lines": [about]}, ratios, {"columns": columns, "rows": rows}, *alone]
    return page(f"{compared['other']} against {compared['one']}", blocks)


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
        limits_text(ladder.limits),
        f"Reproduces: {plan.source} ({plan.hardware})" if plan.source else "",
    ]
    blocks: list[Block] = [{"lines": [*filter(None, about)]}, *({"lines": [note]} for note in plan.notes)]
    for problem in ladder.problems:
        columns, rows = rung_table(ladder, problem)
        blocks.append({"heading": str(problem), "columns": columns, "rows": rows})
        blocks += [{"lines": [text]} for text in slower_texts(ladder, problem)]
    blocks += [_figure_block(figure, name) for name, figure in figures.items()]
    lessons = {rung.step.kernel.name: rung.step.lesson or rung.step.kernel.idea for rung in ladder.rungs}
    blocks.append({"heading": "What each step is about", "meanings": lessons})
    return page(plan.title, [*blocks, {"heading": "What the columns mean", "meanings": COLUMNS}])
