"""Plots: ladders and studies, also as self-contained pages, and the Pareto front of a study."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tuner.errors import EnvironmentTrouble, InputError
from tuner.report.plots.page import page
from tuner.report.plots.seen import Seen as Seen
from tuner.report.rungs import Ladder
from tuner.results.objectives import Front
from tuner.results.record import Record


def write_page(ladder: Ladder, folder: Path) -> list[Path]:
    """Writes ``index.html``, which needs no other file, and each plot as PNG.

    Args:
        ladder: The ladder.
        folder: Is made where it does not exist.

    Returns:
        The files, the page first.

    Raises:
        InputError: The folder cannot be written.
        EnvironmentTrouble: The plotting library is not installed.
    """
    with _plotting(), _written(folder):
        from tuner.report.plots.figures import figures

        drawn = figures(ladder)
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / "index.html"]
        paths[0].write_text(page(ladder, drawn), encoding="utf-8")
        for name, (_, image) in drawn.items():
            paths.append(folder / f"{name}.png")
            paths[-1].write_bytes(image)
    return paths


def study_figures(seen: Seen) -> dict[str, Any]:
    """Figures of a study by name: history, importance, pairs, parallel, failures, time.

    Raises:
        EnvironmentTrouble: Plotly is not installed.
    """
    with _plotting():
        from tuner.report.plots.studies import figures

        return figures(seen)


def write_study(seen: Seen, folder: Path) -> list[Path]:
    """Writes ``study.html``, which needs no other file, and each figure as PNG.

    Args:
        seen: The study.
        folder: Is made where it does not exist.

    Returns:
        The files, the page first.

    Raises:
        InputError: The folder cannot be written.
        EnvironmentTrouble: A plotting library is not installed.
    """
    with _plotting(), _written(folder):
        from tuner.report.plots.study_images import images
        from tuner.report.plots.study_page import page

        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / "study.html"]
        paths[0].write_text(page(seen), encoding="utf-8")
        for name, image in images(seen).items():
            paths.append(folder / f"{name}.png")
            paths[-1].write_bytes(image)
    return paths


def write_comparison(compared: Mapping[str, Any], folder: Path) -> Path:
    """Writes ``compare.html``, which needs no other file.

    Args:
        compared: `tuner.report.comparing.Compared.to_json`.
        folder: Is made where it does not exist.

    Raises:
        InputError: The folder cannot be written.
        EnvironmentTrouble: Plotly is not installed.
    """
    with _plotting(), _written(folder):
        from tuner.report.plots.comparison import page

        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "compare.html"
        path.write_text(page(compared), encoding="utf-8")
    return path


def write_front(front: Front, champion: Record, folder: Path) -> Path:
    """Writes the plot of a front as PNG.

    Args:
        front: The front of a study.
        champion: The champion of the same study.
        folder: Is made where it does not exist.

    Returns:
        The file, named after problem and regime.

    Raises:
        InputError: The folder cannot be written.
        EnvironmentTrouble: The plotting library is not installed.
    """
    problem = champion.problem
    sizes = "x".join(str(size) for _, size in problem.shape)
    parts = (
        "front",
        problem.operation,
        sizes,
        problem.arithmetic.replace(" ", "-"),
        problem.layout,
        champion.regime,
    )
    path = folder / ("-".join([*filter(None, parts), *front.objectives[1:]]) + ".png")
    with _plotting(), _written(folder):
        from tuner.report.plots.fronts import front_image

        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(front_image(front, champion))
    return path


@contextlib.contextmanager
def _plotting() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise EnvironmentTrouble(
            f"plots need matplotlib and plotly, which cannot be imported ({error}); install them"
        ) from error


@contextlib.contextmanager
def _written(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"-o takes a folder that can be written, got {folder} ({error}); choose another"
        ) from error
