"""Sentinels on a fake board: who takes part, what is kept, and what a wrong or crashing champion becomes."""

from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_device import BEST, TOY, rule, write_device

from tuner.declare import catalogue
from tuner.declare.space import Config
from tuner.devices.detect import find
from tuner.night.sentinels import Contender, Pass, Watched
from tuner.night.stored import Sentinel
from tuner.results import codec
from tuner.results.sentinel import BEFORE, CHAMPION, LIBRARY, Terms

OTHER = {"BLOCK": 128, "ITEMS": 4, "ORDER": "blocked"}
TERMS = Terms(budget_s=0.1)


def toy(*configs: dict[str, object]) -> Watched:
    """The toy problem with its champion, and the one before it."""
    declared = catalogue.from_file(TOY)
    (kernel, *_) = declared.of("toy", "cuda")
    names = (CHAMPION, BEFORE)[: len(configs)]
    contenders = tuple(
        Contender(name, kernel, Config(config)) for name, config in zip(names, configs, strict=True)
    )
    return Watched(declared.operation("toy").problem({"n": 1000}), "cold", contenders)


def timed(spec: str, *configs: dict[str, object]) -> Sentinel:
    """The toy's sentinel in a fresh process."""
    found = find(spec)
    (sentinel,) = Pass("night", 1, TERMS).over(found, {}, [toy(*configs)])
    return sentinel


def test_champion_the_one_before_and_the_library_are_timed_in_turns(tmp_path: Path) -> None:
    rules = [rule(BEST, latency_s=1e-3), rule(OTHER, latency_s=1.1e-3)]
    spec = write_device(tmp_path / "d.json", rules=rules, baseline_s=2e-3)
    found = timed(spec, BEST, OTHER)
    assert [each.name for each in found.players] == [CHAMPION, BEFORE, LIBRARY]
    assert len({len(each.rounds_s) for each in found.players}) == 1
    assert found.verdict(BEFORE) == "faster"
    shift = found.shift(CHAMPION, LIBRARY)
    assert shift.log_ratio == pytest.approx(-0.69, abs=0.02)
    champion = found.player(CHAMPION)
    assert champion.binary_hash != found.players[1].binary_hash
    assert found.circumstances["sm_clock_hz"][0] == 1e9
    assert found.versions["driver"] == "1.0"
    assert codec.from_json(Sentinel, codec.to_json(found)) == found


@pytest.mark.parametrize(("device", "told"), [
    ({"free_bytes": 1000}, "must fit into free memory"),
    ({"rules": [rule(BEST, fault="wrong_result")]}, "times what rounding explains"),
    ({"rules": [rule(BEST, fault="crash")]}, "SIGSEGV"),
    ({"rules": [rule(BEST, fault="compile_failed")]}, "injected"),
])  # fmt: skip
def test_a_champion_that_fails_says_how(tmp_path: Path, device: dict[str, Any], told: str) -> None:
    spec = write_device(tmp_path / "d.json", baseline_s=2e-3, **device)
    found = timed(spec, BEST)
    assert found.player(CHAMPION) is None
    assert told in found.players[0].wrong
    assert found.verdict(LIBRARY) == ""
