"""A ladder as plots and as one self-contained page."""

from __future__ import annotations

from pathlib import Path

from tuner.errors import EnvironmentTrouble, InputError
from tuner.ladder import Ladder
from tuner.plots.page import page


def write_page(ladder: Ladder, folder: Path) -> list[Path]:
    """Writes ``index.html``, which needs no other file, and each plot as PNG.

    Args:
        ladder: What was climbed.
        folder: Is made where it does not exist.

    Returns:
        The files, the page first.

    Raises:
        InputError: The folder cannot be written.
        EnvironmentTrouble: The plotting library is not installed.
    """
    try:
        from tuner.plots.figures import figures
    except ImportError as error:
        raise EnvironmentTrouble(
            f"plots need matplotlib, which cannot be imported ({error}); install it"
        ) from error
    drawn = figures(ladder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / "index.html"]
        paths[0].write_text(page(ladder, drawn), encoding="utf-8")
        for name, (_, image) in drawn.items():
            paths.append(folder / f"{name}.png")
            paths[-1].write_bytes(image)
    except OSError as error:
        raise InputError(
            f"-o takes a folder that can be written, got {folder} ({error}); choose another"
        ) from error
    return paths
