"""Reading recorded spaces."""

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.records import record, square
from recordings import Recording, read_recording, simulate

from tuner.declare.space import Config
from tuner.errors import InputError
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import Record, Role
from tuner.store.lines import header, line_of


def entry(block: int, mode: str, time: Any, **more: Any) -> dict[str, Any]:
    """An entry of a Kernel Tuner cache."""
    return {"block": block, "mode": mode, "time": time, **more}


CACHE: dict[str, Any] = {
    "device_name": "NVIDIA H200",
    "kernel_name": "stencil",
    "tune_params_keys": ["block", "mode"],
    "tune_params": {"block": [16, 32, 64], "mode": ["a", "b"]},
    "cache": {
        "16,a": entry(
            16, "a", 2.5, times=[2.0, 3.0], compile_time=100.0, benchmark_time=6.0, verification_time=1
        ),
        "32,a": entry(32, "a", "CompilationFailedConfig", compile_time=50.0),
        "32,b": entry(32, "b", "RuntimeFailedConfig"),
        "16,b": entry(16, "b", 4.0),
        "64,b": entry(64, "b", 1e20),
    },
}


def written(folder: Path, data: Any, name: str = "space.json") -> Path:
    """The data as a file."""
    path = folder / name
    text = data if isinstance(data, str) else json.dumps(data)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("data", [CACHE, json.dumps(CACHE).removesuffix("}}") + ",\n"], ids=["closed", "open"])
def test_a_kernel_tuner_cache_is_read(tmp_path: Path, data: Any) -> None:
    recording = read_recording(written(tmp_path, data, "space.json.gz"))
    assert (recording.name, recording.device, list(recording.spaces)) == ("space", "NVIDIA H200", ["stencil"])
    space = recording.spaces["stencil"]
    assert [",".join(map(str, config.values())) for config in space] == list(CACHE["cache"])
    assert {each.name: (each.values, each.scale) for each in space.parameters} == {
        "block": ((16, 32, 64), "log2"), "mode": (("a", "b"), "categorical"),
    }  # fmt: skip
    first = recording.measurement("stencil", Config({"block": 16, "mode": "a"}))
    assert first.samples_s == pytest.approx((0.002, 0.003))
    assert first.stages_s == pytest.approx({"compile": 0.1, "verify": 0.001, "time": 0.006})
    outcomes = [each.outcome for each in recording.measurements["stencil"]]
    assert outcomes == [
        Outcome.MEASURED, Outcome.COMPILE_FAILED, Outcome.LAUNCH_FAILED, Outcome.MEASURED,
        Outcome.LAUNCH_FAILED,
    ]  # fmt: skip
    assert recording.optimum_s == pytest.approx(0.0025)


def own(kernel: str, size: int, role: Role, **more: Any) -> Record:
    """A record of a config that took so many milliseconds."""
    measured = Measurement(Outcome.MEASURED, samples_s=(size / 1e3,))
    return replace(
        record(square(64), kernel=kernel, config={"BM": size}), role=role, measurement=measured, **more
    )


def exported(*records: Record) -> str:
    return "".join(f"{line}\n" for line in (header(), *map(line_of, records)))


def test_our_own_records_are_read(tmp_path: Path) -> None:
    records = [own("tiled", 8, Role.TRIAL), own("tiled", 16, Role.TRIAL), own("naive", 3, Role.TRIAL)]
    text = exported(*records, own("cuBLAS", 1, Role.BASELINE))
    recording = read_recording(written(tmp_path, text, "space.jsonl.gz"))
    assert {name: [c.BM for c in space] for name, space in recording.spaces.items()} == {
        "tiled": [8, 16], "naive": [3],
    }  # fmt: skip
    assert (recording.name, recording.optimum_s) == ("space", pytest.approx(0.003))
    assert recording.device == records[0].device.name


TRIAL = own("k", 1, Role.TRIAL)


@pytest.mark.parametrize(("data", "message"), [
    ("{", "is a Kernel Tuner cache or an export of our records"),
    (None, r"found none at .*space\.json; check the path"),
    (exported(TRIAL, replace(TRIAL, regime="hot")), "is of one problem and regime"),
    (exported(TRIAL, replace(TRIAL, config={"A": 1})), "have the same parameters, got BM and A"),
    ({"cache": {}}, "a Kernel Tuner cache lists tune_params_keys"),
    ({"cache": {"1": {"a": 1}}, "tune_params_keys": ["a"]}, "each entry has these and a time"),
    (
        {"cache": {"1": {"a": 1, "time": "InvalidConfig"}}, "tune_params_keys": ["a"]},
        "a recording has a config with a time, got none",
    ),
])  # fmt: skip
def test_what_is_no_recording_is_refused(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_recording(tmp_path / "space.json" if data is None else written(tmp_path, data))


def test_a_broken_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.json.gz").write_bytes(gzip.compress(b"{}" * 1000)[:20])
    with pytest.raises(InputError, match="cannot be read"):
        read_recording(tmp_path / "broken.json.gz")


# --- replays ----------------------------------------


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
