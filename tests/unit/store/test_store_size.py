"""What a record takes on disk."""

import random
from pathlib import Path

from fixtures.records import record, square

from tuner.results.measurement import CompileReport, Error, Measurement, Outcome
from tuner.results.record import Record
from tuner.store import Store

#: Bytes of a record in SQLite, indexes and all.
MOST_BYTES = 1500
#: As `register_tiled` has them.
PARAMETERS = ("BM", "BN", "BK", "TM", "TN", "VECTOR", "PAD", "STAGES", "ROWS", "SWIZZLE", "SPLIT", "UNROLL")


def trial(number: int, rng: random.Random) -> Record:
    measurement = Measurement(
        Outcome.MEASURED, "", tuple(1e-3 * rng.gauss(1, 0.01) for _ in range(5)),
        Error(rng.uniform(1e-6, 9e-6), rng.uniform(1e-7, 9e-7), rng.random(), rng.uniform(1e-7, 9e-7)),
        CompileReport(128, 0, 32768, 0, f"{rng.getrandbits(64):016x}", "NVRTC 13.0"),
        {name: rng.random() for name in ("compile", "load", "verify", "time")},
        {"sm_clock_hz": 1.98e9, "temperature_c": 40, "power_w": rng.uniform(200, 700), "occupancy": 0.5},
    )  # fmt: skip
    config = {name: rng.choice((1, 2, 4, 8, 16, 32, 64, 128)) for name in PARAMETERS}
    return record(square(1024 + number // 500), config=config, measurement=measurement, study="a study")


def test_a_record_takes_at_most_1500_bytes(tmp_path: Path) -> None:
    path, rng, count = tmp_path / "studies.db", random.Random(0), 1500
    with Store.open(f"sqlite:///{path}") as store:
        store.add([])
        empty = path.stat().st_size
        store.add([trial(number, rng) for number in range(count)])
    assert (path.stat().st_size - empty) / count < MOST_BYTES
