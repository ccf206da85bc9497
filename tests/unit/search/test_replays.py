"""Replaying studies on recordings."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from recordings import Recording, read_recording, simulate

from tuner.errors import InputError


def recorded(folder: Path, name: str = "toy", shift: float = 0.0, kernel: str = "k") -> Recording:
    """640 configs; X=32 Y=8 Z=0 is best; a third of Z=3 fails; ten samples with noise of 1 %."""
    cache: dict[str, Any] = {}
    for x in (1, 2, 4, 8, 16, 32, 64, 128):
        for y in (1, 2, 4, 8, 16):
            for z in range(16):
                log = abs(math.log2(x / 32) + shift) * 0.3 + abs(math.log2(y / 8)) * 0.2 + 0.1 * z
                samples = [math.exp(log) * (1 + 0.01 * math.sin(x + 3 * y + 7 * z + at)) for at in range(10)]
                time: Any = sum(samples) / 10
                if z == 3 and y > 4:
                    time = "RuntimeFailedConfig"
                cache[f"{x},{y},{z}"] = {
                    "X": x, "Y": y, "Z": z, "time": time, "times": samples, "compile_time": 500.0,
                }  # fmt: skip
    path = folder / f"{name}.json"
    data = {"device_name": "D", "kernel_name": kernel, "tune_params_keys": ["X", "Y", "Z"], "cache": cache}
    path.write_text(json.dumps(data), encoding="utf-8")
    return read_recording(path)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """The recording."""
    return recorded(tmp_path_factory.mktemp("recordings"))


def test_the_whole_space_reaches_the_optimum(toy: Recording) -> None:
    fractions = simulate(toy, sampler="bruteforce", trials=1000, repeats=1)["fraction_at"]
    assert list(fractions) == ["10", "25", "50", "100", "200", "1000"]
    assert fractions["1000"]["min"] == pytest.approx(1.0, abs=0.02)


def test_wrong_input_is_refused(toy: Recording, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="are 1 or more, got 0 and 20"):
        simulate(toy, trials=0)
    with pytest.raises(
        InputError, match="a warm start is a recording of the same kernel, got one of other for k"
    ):
        simulate(toy, warm_start=recorded(tmp_path, "other", kernel="other"))


def test_earlier_records_of_another_device_help(toy: Recording, tmp_path: Path) -> None:
    there = recorded(tmp_path, "there", shift=1.0)
    cold, known = (simulate(toy, trials=12, repeats=2, warm_start=past) for past in (None, there))
    assert list(cold["fraction_at"]) == ["10", "12"]
    for fractions in cold["fraction_at"].values():
        assert 0 < fractions["min"] <= fractions["mean"] <= fractions["max"] <= 1
    assert cold["seconds_per_trial"] == pytest.approx(0.5, rel=0.01)
    assert known["fraction_at"]["12"]["mean"] > cold["fraction_at"]["12"]["mean"]
