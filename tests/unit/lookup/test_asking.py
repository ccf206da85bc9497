"""What a database's URL says: which file it is, from any folder."""

from pathlib import Path

import pytest

from tuner.lookup.asking import database_url, opened


@pytest.mark.parametrize(("url", "absolute"), [
    ("sqlite:///s", "sqlite:///{here}/s"), ("sqlite:///./x.db", "sqlite:///{here}/x.db"),
    ("sqlite:////data/x.db?timeout=3", "sqlite:////data/x.db?timeout=3"),
    ("postgresql://host/tuner?connect_timeout=2", "postgresql://host/tuner?connect_timeout=2"),
])  # fmt: skip
def test_a_file_is_the_same_from_any_folder(
    url: str, absolute: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert database_url(url) == absolute.format(here=tmp_path)


def test_a_file_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert opened(f"sqlite:///{tmp_path}/none.db?timeout=3") is None
