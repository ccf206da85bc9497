"""Exit codes and the hints of unknown names."""

from __future__ import annotations

import pytest

from tuner import errors

CODES = {
    errors.NothingFound: 1, errors.InputError: 2, errors.UnknownName: 2, errors.PlanError: 2,
    errors.DeclarationError: 2, errors.EnvironmentTrouble: 3, errors.DeviceTrouble: 3,
    errors.StoreTrouble: 3, errors.LockedByAnother: 3, errors.Interrupted: 130,
}  # fmt: skip


@pytest.mark.parametrize("kind", CODES, ids=lambda kind: kind.__name__)
def test_every_error_has_its_exit_code(kind: type[errors.TunerError]) -> None:
    assert kind.exit_code == CODES[kind]


def test_no_error_is_left_out_here() -> None:
    found = {each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)}
    assert found == {*CODES, errors.TunerError}


def test_an_unknown_name_lists_the_nearest_first() -> None:
    error = errors.UnknownName("kernel", "registertiled", ["naive", "register_tiled"])
    assert str(error) == (
        "unknown kernel 'registertiled'; did you mean register_tiled? Known: naive, register_tiled"
    )


def test_an_unknown_name_without_near_ones_lists_all() -> None:
    assert (
        str(errors.UnknownName("dtype", "bool", ["float32"])) == "unknown dtype 'bool'; choose one of: float32"
    )


def test_an_unknown_name_where_nothing_is_known_says_so() -> None:
    assert str(errors.UnknownName("device", "x", [])) == "unknown device 'x'; no device is known here"
