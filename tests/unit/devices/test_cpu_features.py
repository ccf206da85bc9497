"""A CPU that is held to narrower vectors than it has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.devices import detect
from tuner.devices.cpu import kind as cpu_kind
from tuner.devices.cpu.kind import FEATURES_VARIABLE as VARIABLE
from tuner.devices.cpu.kind import vectors_in_use as used
from tuner.errors import DeviceTrouble, InputError

WIDE = {"avx", "avx2", "avx512f"}


@pytest.mark.parametrize(
    ("asked", "flags", "width", "restricted"),
    [
        ("", WIDE, 64, False), ("", {"avx2"}, 32, False), ("", {"asimd"}, 16, False), ("", set(), 16, False),
        ("avx2", WIDE, 32, True), ("AVX2 ", WIDE, 32, True), ("avx2", {"avx2"}, 32, False),
    ],
)  # fmt: skip
def test_the_vectors_that_are_used(
    monkeypatch: pytest.MonkeyPatch, asked: str, flags: set[str], width: int, restricted: bool
) -> None:
    monkeypatch.setenv(VARIABLE, asked)
    found = used(flags)
    assert (found.bytes, found.restricted, bool(found.environment)) == (width, restricted, restricted)


def test_what_cannot_be_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "mmx")
    with pytest.raises(InputError, match="TUNER_CPU_FEATURES is avx2, got 'mmx'; unset it"):
        used(WIDE)
    monkeypatch.setenv(VARIABLE, "avx2")
    with pytest.raises(DeviceTrouble, match="this one has none; unset it"):
        used({"sse2"})


def test_a_restricted_cpu_has_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(cpu_kind, "cpu_flags", lambda: set(WIDE))
    whole = detect.find("cpu")
    assert (whole.info.vector_bytes, whole.environment, "AVX-512)" in whole.info.name) == (64, (), True)
    monkeypatch.setenv(VARIABLE, "avx2")
    held = detect.find("cpu")
    assert "restricted to AVX2)" in held.info.name
    assert held.info.vector_bytes == 32
    assert held.info.uuid != whole.info.uuid
    assert dict(held.environment)["OPENBLAS_CORETYPE"] == "Haswell"
    assert cpu_kind.with_best_blas(held, "Haswell") is None


@pytest.mark.skipif("avx512f" not in cpu_kind.cpu_flags(), reason="needs a CPU with AVX-512")
def test_a_restricted_process_compiles_without_wider_vectors(tmp_path: Path) -> None:
    script = """
import numpy, numba
from tuner.devices.cpu.device import CpuDevice
device = CpuDevice()
@numba.njit
def scaled(a):
    for i in range(a.size):
        a[i] = a[i] * 2
scaled(numpy.ones(100, numpy.float32))
assembly = next(iter(scaled.inspect_asm().values()))
print(device.info.architecture, "zmm" in assembly, "ymm" in assembly, device.versions["cpu_features"])
print(device.circumstances(lambda: None)["restricted_to_vector_bytes"])
"""
    environment = {**os.environ, VARIABLE: "avx2", "TUNER_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "haswell False True restricted to AVX2, by TUNER_CPU_FEATURES", "32.0"
    ], done.stderr  # fmt: skip
