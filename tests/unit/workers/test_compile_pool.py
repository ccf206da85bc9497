"""A pool of compile workers: what comes out of it, whatever happens inside."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fixtures.fake_device import BEST, BOARD, FAULTS, TOY, fault_configs, request, write_device

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Rendered, render
from tuner.declare.launch import Launch
from tuner.declare.space import Config
from tuner.results.measurement import CompileReport, Measurement, Outcome
from tuner.workers import compile_pool
from tuner.workers.bench import CompiledConfig
from tuner.workers.compile_pool import CompilePool, ruled_out

Make = Callable[..., CompilePool]
#: Seconds that a test waits before it gives up.
PATIENCE_S = 60.0


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes pools for a fake device with every fault."""
    spec = write_device(tmp_path / "device.json", faults=True)
    pools: list[CompilePool] = []

    def made(size: int = 2) -> CompilePool:
        named = {**request(spec).problem.to_json(), "origin": str(TOY)}
        pools.append(CompilePool(spec, "sm_90", named, size))
        return pools[-1]

    yield made
    for pool in pools:
        pool.close()


def rendered(config: dict[str, object], tmp_path: Path) -> Rendered:
    asked = request(f"fake:{tmp_path}/device.json")
    return render(asked.kernels[0], asked.problem, Config(config))  # type: ignore[arg-type]


def drained(pool: CompilePool, count: int) -> dict[int, CompiledConfig | Measurement]:
    """Waits until so many compilations are done."""
    found: dict[int, CompiledConfig | Measurement] = {}
    until = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < until:
        done = pool.ready()
        assert not done.keys() & found.keys()
        found |= done
        time.sleep(0.005)
    return found


def test_every_ticket_comes_back_once_whatever_happens(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make()
    # Workers are up before time counts.
    assert set(pool.compile_all({1: rendered(BEST, tmp_path), 2: rendered(BEST, tmp_path)})) == {1, 2}
    monkeypatch.setattr(compile_pool, "LIMIT_S", 5.0)
    faults = ("compile_failed", "compile_crash", "compile_memory", "compile_hang")
    for ticket, fault in enumerate(faults):
        pool.submit(ticket, rendered(fault_configs()[fault], tmp_path))
    good = [{"BLOCK": block, "ITEMS": 1, "ORDER": "striped"} for block in (32, 64, 128, 256)]
    for ticket, config in enumerate(good, start=10):
        pool.submit(ticket, rendered(config, tmp_path))
    assert pool.pending == 8
    found = drained(pool, 8)
    assert set(found) == {0, 1, 2, 3, 10, 11, 12, 13}
    assert pool.pending == 0
    for ticket, fault in enumerate(faults):
        failure = found[ticket]
        assert isinstance(failure, Measurement)
        assert (failure.outcome.value, FAULTS[fault][1] in failure.reason) == (FAULTS[fault][0], True)
    for ticket in (10, 11, 12, 13):
        code = found[ticket]
        assert isinstance(code, CompiledConfig)
        assert code.code == code.rendered.text.encode()
        assert code.compile_s >= 0


# --- what the compiler's report rules out ------------------------------------------------------------

DEVICE = DeviceInfo.from_json(BOARD)


@pytest.mark.parametrize(
    ("block", "report", "outcome", "reason"),
    [
        ((1024,), {"registers": 64}, None, ""),
        ((1024,), {"registers": 65}, Outcome.LAUNCH_FAILED, "a block has at most 65536 registers"),
        ((64,), {"spill_bytes": compile_pool.MAX_SPILL_BYTES}, None, ""),
        ((64,), {"spill_bytes": 516}, Outcome.PRUNED, "spills 516 bytes a thread"),
        (None, {"spill_bytes": 10**6, "registers": 10**6}, None, ""),
    ],
)
def test_the_compilers_report_rules_out_what_cannot_launch_or_win(
    block: tuple[int, ...] | None, report: dict[str, int], outcome: Outcome | None, reason: str
) -> None:
    source = Rendered("", "toy", "cuda", Launch((1,), block) if block else None)
    refused = ruled_out(CompiledConfig(source, b"", CompileReport(**report), 0.25), DEVICE)
    assert (refused and refused.outcome) == outcome
    if refused is not None:
        assert reason in refused.reason
        assert refused.stages_s == {"compile": 0.25}
