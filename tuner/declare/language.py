"""Languages of kernels, as far as their sources go; `tuner.devices.protocol.Language` says the rest.

A language is a folder of `tuner/devices` with a module `language.py`, whose `LANGUAGE` implements the protocol.
It is found there, and named nowhere else. An extra may provide another one, as ``language``.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tuner.declare.space import Config
from tuner.errors import DeclarationError
from tuner.extras import provided


class SourceLanguage:
    """What a declaration needs to know of its source's language.

    Attributes:
        name: Name of the language: ``cuda``, ``numba``.
        target: What kernels declare as their ``target``, and their folder: ``kernels/OPERATION/TARGET``.
        kind: Name of the kind of device that its kernels run on; several languages may share one.
        suffix: End of a source's file name.
        has_launch: True if a declaration gives a grid and blocks; False if the source starts its own threads.
        is_library: True if what runs is a library's, which may refuse a shape, and says so when it is loaded.
    """

    name: str
    target: str
    kind: str
    suffix: str
    has_launch: bool
    is_library: bool = False

    def measured_text(self, text: str) -> str:
        """The part of a source on which a measurement depends: equal for sources that differ in layout only.

        Source hashes, and with them whether a record is stale, rest on it. A source that cannot be read is
        returned unchanged.
        """
        raise NotImplementedError

    def rendered(self, kernel: Any, constants: Mapping[str, Any], config: Config, finishing: str) -> str:
        """One self-contained source.

        Args:
            kernel: `tuner.declare.kernel.Kernel`.
            constants: Of the operation.
            config: Values of the parameters.
            finishing: What is called on a result; empty for a problem without an epilogue.
        """
        raise NotImplementedError


@cache
def languages() -> Mapping[str, SourceLanguage]:
    """Target -> language, of all folders that have one. None of their libraries is loaded."""
    folders = sorted(path.parent.name for path in (Path(__file__).parents[1] / "devices").glob("*/language.py"))
    loaded = [import_module(f"tuner.devices.{folder}.language").LANGUAGE for folder in folders]
    return {language.target: language for language in (*loaded, *provided("language"))}


def source_language(target: str) -> SourceLanguage:
    """The language of kernels with this target.

    Raises:
        DeclarationError: There is none.
    """
    if target not in languages():
        raise DeclarationError(f"a target is one of {', '.join(languages())}, got {target!r}")
    return languages()[target]
