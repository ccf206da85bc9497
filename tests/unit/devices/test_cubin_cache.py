"""Cubins on disk: found by all that they depend on, and bounded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tuner.declare.kernel import Rendered
from tuner.declare.launch import Launch
from tuner.devices.cuda import nvrtc
from tuner.devices.cuda.nvrtc import NvrtcCompiler
from tuner.devices.protocol import Binary
from tuner.devices.settings import cache_root
from tuner.results.measurement import CompileReport

RENDERED = Rendered("source", "entry", "cuda", Launch((1,), (32,)), options=("-O3",))
BINARY = Binary(b"\x7fELF\n\x00", CompileReport(registers=40, binary_hash="ab", compiler="NVRTC 13.0"))


def test_it_stays_within_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path))
    monkeypatch.setattr(nvrtc, "LIMIT_BYTES", 1 << 20)
    small = NvrtcCompiler()
    for number in range(60):
        large = replace(BINARY, code=bytes([number]) * (1 << 16))
        small.put(replace(RENDERED, text=f"source {number}"), "sm_90a", large)
    small.close()
    held = sum(file.stat().st_size for file in cache_root().rglob("*.val"))
    assert (1 << 16) < held < 2 << 20
    assert NvrtcCompiler().get(replace(RENDERED, text="source 59"), "sm_90a", "NVRTC 13.0") is not None
