"""Exit codes and the hints of unknown names."""

import pytest

from tuner import errors

CODES = {
    errors.NothingFound: 1, errors.InputError: 2, errors.UnknownName: 2, errors.PlanError: 2,
    errors.DeclarationError: 2, errors.EnvironmentTrouble: 3, errors.DeviceTrouble: 3,
    errors.StoreTrouble: 3, errors.LockedByAnother: 3, errors.Interrupted: 130,
}  # fmt: skip


def test_every_error_has_its_exit_code_and_none_is_left_out_here() -> None:
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)]
    assert {kind: kind.exit_code for kind in kinds if kind is not errors.TunerError} == CODES


@pytest.mark.parametrize(("kind", "name", "known", "message"), [
    ("kernel", "registertiled", ["naive", "register_tiled"],
     "unknown kernel 'registertiled'; did you mean register_tiled? Known: naive, register_tiled"),
    ("dtype", "bool", ["float32"], "unknown dtype 'bool'; choose one of: float32"),
    ("device", "x", [], "unknown device 'x'; no device is known here"),
])  # fmt: skip
def test_an_unknown_name_lists_the_nearest_or_all(kind: str, name: str, known: list[str], message: str) -> None:
    assert str(errors.UnknownName(kind, name, known)) == message
