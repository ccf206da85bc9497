"""The host's memory as far as a process may use it; and workers that may take so much and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tuner.devices.cpu import host
from tuner.workers.process import MEMORY_VARIABLE, Worker


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(host, "CGROUPS", tmp_path)
    (tmp_path / "memory").mkdir()
    return tmp_path


def test_a_machine_without_control_groups_has_all_its_memory(cgroups: Path) -> None:
    assert host.memory_bytes() == psutil.virtual_memory().total
    assert 0 < host.free_bytes() <= host.memory_bytes()


@pytest.mark.parametrize(
    ("limit", "used"),
    [("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")],
)
def test_a_container_has_what_its_group_leaves(cgroups: Path, limit: str, used: str) -> None:
    (cgroups / limit).write_text("1000000\n")
    (cgroups / used).write_text("400000\n")
    assert (host.memory_bytes(), host.free_bytes()) == (1_000_000, 600_000)
    (cgroups / used).write_text("1200000\n")
    assert host.free_bytes() == 0


def test_a_group_without_a_limit_is_as_good_as_none(cgroups: Path) -> None:
    (cgroups / "memory.max").write_text("max\n")
    (cgroups / "memory.current").write_text("1\n")
    assert host.memory_bytes() == psutil.virtual_memory().total


@pytest.fixture
def limit_of() -> Iterator[Callable[..., int]]:
    """Starts a worker, waits until it is ready, and tells the memory that it may take."""
    workers: list[Worker] = []

    def limit(role: str, spec: str, environment: dict[str, str]) -> int:
        workers.append(Worker(role, spec, environment))
        workers[-1].ask({"do": "hello"})
        process = psutil.Process(workers[-1].pid)
        soft, _ = process.rlimit(psutil.RLIMIT_DATA)
        return int(soft) - int(process.memory_info().data) if soft > 0 else -1

    yield limit
    for worker in workers:
        worker.close()


def test_workers_take_their_share_at_the_most(limit_of: Callable[..., int], tmp_path: Path) -> None:
    (tmp_path / "device.json").write_text('{"info": {"name": "Fake", "kind": "cuda"}}')
    near = 64 << 20
    assert abs(limit_of("compile", "cpu", {MEMORY_VARIABLE: str(1 << 30)}) - (1 << 30)) < near
    assert limit_of("device", f"fake:{tmp_path}/device.json", {}) == -1
    assert near < limit_of("device", "cpu", {}) < psutil.virtual_memory().total
