"""How the documentation is built: `scripts/docs`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

from tuner.version import __version__  # noqa: E402

project = "tile-tuner"
version = release = __version__
copyright = "the authors of tile-tuner"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["build"]
html_theme = "furo"
html_title = f"tile-tuner {__version__}"
html_show_sourcelink = False
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_use_ivar = True
copybutton_prompt_text = "$ "

#: A link of Markdown to a file: its text, its target, and a place in that.
_LINK = re.compile(r"(?<!!)\[([^\]\n]+)\]\(([^)#\s:]+)(#[^)\s]*)?\)")


def _linked(found: re.Match[str], folder: Path) -> str:
    """A link that stays one on the site: files of the repository beside docs/ become their paths."""
    text, target = found[1], (folder / found[2]).resolve()
    if target.is_relative_to(DOCS):
        index = target / "index.md"
        return f"[{text}]({found[2].rstrip('/')}/index.md)" if index.is_file() else found[0]
    if not target.exists():  # a broken link is left, and fails the build
        return found[0]
    path = str(target.relative_to(ROOT))
    return f"`{path}`" if text.strip("`") in (path, path.rpartition("/")[2], found[2]) else f"{text} (`{path}`)"


def _rewritten(app: Any, name: str, source: list[str]) -> None:
    """Rewrites the links of a page that GitHub shows as well."""
    folder = (DOCS / name).parent
    source[0] = _LINK.sub(lambda found: _linked(found, folder), source[0])
    if name == "index":
        source[0] += _others(source[0])


def _others(index: str) -> str:
    """A list of the pages that the first page does not list itself: a new page is found all the same."""
    listed = {"index", *re.findall(r"^[\w/-]+$", index, re.MULTILINE)}
    others = sorted({path.stem for path in DOCS.glob("*.md")} - listed)
    entries = "\n".join(others)
    return f"\n```{{toctree}}\n:caption: More\n:hidden:\n\n{entries}\n```\n" if others else ""


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _rewritten)
