"""Kinds of devices and languages of kernels: each is one folder, and hardly anything outside names one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tuner
from tuner.declare.language import languages
from tuner.devices.detect import is_spec, kind_of, kinds, language_of
from tuner.devices.protocol import REGIMES
from tuner.errors import DeclarationError, InputError

PACKAGE = Path(tuner.__file__).parent
#: Questions about other libraries' names of devices (PyTorch's, DLPack's), and the default GPU of `tuner.tune`.
MOST_PLACES = 5
#: Whoever asks for a fake device asks whether this is a rehearsal.
NAMES = {*kinds(), *languages(), *(language_of(target).name for target in languages())} - {"fake"}


def _names_one(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(map(_names_one, node.elts))
    return isinstance(node, ast.Constant) and str(node.value).partition(":")[0] in NAMES


def _asks(node: ast.AST) -> bool:
    """True for a comparison with the name of a kind or language, or a table by such names."""
    if isinstance(node, ast.Compare):
        return any(map(_names_one, (node.left, *node.comparators)))
    if isinstance(node, ast.Dict):
        return any(key is not None and _names_one(key) for key in node.keys)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ("startswith", "get") and any(map(_names_one, node.args))
    return isinstance(node, ast.MatchValue) and _names_one(node.value)


def test_nearly_nothing_outside_devices_asks_what_kind_a_device_is() -> None:
    places = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] != "devices"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if _asks(node)
    ]
    assert len(places) <= MOST_PLACES, f"give the kind or the language an attribute instead: {places}"


@pytest.mark.parametrize("name", kinds())
def test_a_kind_says_all_that_the_protocol_names(name: str) -> None:
    kind = kinds()[name]
    assert kind.name == name
    assert set(kind.regimes) <= set(REGIMES)
    assert kind.survey.regime in kind.regimes
    assert kind.survey.least > 0 < kind.survey.ahead
    assert min(*kind.guessed_rates, kind.copied_bytes_per_s, kind.copy_s) > 0
    assert not kind.first or kind_of(kind.first) is kind


@pytest.mark.parametrize("target", languages())
def test_a_language_says_all_that_the_protocol_names(target: str) -> None:
    language = language_of(target)
    assert (language.target, language.kind in kinds()) == (target, True)
    assert language.array_library
    assert language.suffix.startswith(".")
    assert all(form.format("13.1", "13", "1") for _, form in language.compiler_packages)


def test_what_has_no_folder_is_refused() -> None:
    with pytest.raises(InputError, match="a device is cpu, cuda or cuda:N, got 'tpu'"):
        kind_of("tpu")
    with pytest.raises(DeclarationError, match="a target is one of cpu, cuda, got 'triton'"):
        language_of("triton")
    assert (is_spec(""), is_spec("cpu"), is_spec("cuda:1"), is_spec("NVIDIA H200")) == (True, True, True, False)
