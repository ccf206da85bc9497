"""Tests mirror the packages: `tests/unit/<package>` tests `tuner/<package>`, and no other folder is there."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_package_has_a_folder_of_tests_and_every_folder_a_package() -> None:
    packages = {path.parent.name for path in (ROOT / "tuner").glob("*/__init__.py")}
    folders = {path.parent.name for path in (ROOT / "tests/unit").glob("*/test_*.py")}
    assert folders == packages
