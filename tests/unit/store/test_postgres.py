"""A database on a server: what a study, several writers and every kind of trouble make of it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from fixtures.fake_device import BEST, BEST_S, ROOT, TOY, write_device
from fixtures.postgres import Databases
from fixtures.records import record, square

from tuner.cli.main import run
from tuner.errors import StoreTrouble
from tuner.store import Store


@pytest.fixture(scope="module")
def databases(postgresql: str) -> Databases:
    return Databases(postgresql)


@pytest.fixture
def url(databases: Databases) -> Iterator[str]:
    return databases.fresh()


def test_a_study_and_a_lookup_on_a_server(url: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device = write_device(here / "device.json", baseline_s=2 * BEST_S)
    named = [str(TOY), "--set", "n=1000", "--device", device, "--db", url, "--json"]
    assert run(["tune", *named, "--sampler", "random", "--trials", "60", "--quiet"]) == 0
    capsys.readouterr()
    assert run(["best", *named]) == 0
    assert json.loads(capsys.readouterr().out)["config"] == BEST
    assert [file.name for file in here.iterdir() if "ledger" in file.name] == []


def test_several_processes_write_to_one_server(url: str) -> None:
    """They make the tables and add the same records in opposite orders; none waits for another in a circle."""
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from fixtures.records import record, square
from tuner.store import Store
ids = [f"00000000-0000-4000-8000-{{n:012d}}" for n in range(60)]
some = [record(square(1 + n % 7), id=each) for n, each in enumerate(ids)]
with Store.open({url!r}) as store:
    for _ in range(5):
        store.add(some if sys.argv[1] == "forward" else some[::-1])
"""
    ways = ("forward", "backward", "forward")
    writers = [subprocess.Popen([sys.executable, "-c", script, way], cwd=ROOT) for way in ways]
    assert [each.wait() for each in writers] == [0, 0, 0]
    with Store.open(url, read_only=True) as store:
        assert len(store.records()) == 60


def test_a_connection_that_broke_is_made_anew(url: str, databases: Databases) -> None:
    with Store.open(url) as store:
        store.add(record(square(64)))
        databases.disconnect(url)
        store.add(record(square(64)))
        assert len(store.records()) == 2


@pytest.mark.parametrize(("part", "instead", "told"), [
    ("127.0.0.1", "127.0.0.1:1/x?", "its server does not answer; start it, or check host, port"),
    ("tuner:", "stranger:", "user or password is wrong"),
    ("/tuner_", "/other_", "there is no such database or user on its server; make it"),
])  # fmt: skip
def test_trouble_is_told_with_what_to_do(url: str, part: str, instead: str, told: str) -> None:
    with pytest.raises(StoreTrouble, match=told) as caught:
        Store.open(url.replace(part, instead, 1))
    assert sa.make_url(url).password not in str(caught.value)
