"""Kinds of devices and languages of kernels: each is one folder, and hardly anything outside names one."""

from __future__ import annotations

import pytest

from tuner.declare.language import languages
from tuner.devices.detect import is_spec, kind_of, kinds, language_of
from tuner.devices.protocol import REGIMES
from tuner.errors import DeclarationError, InputError


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
