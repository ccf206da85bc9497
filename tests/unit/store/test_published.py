"""Results that come with the project: written for review, merged with what is there, read by themselves."""

from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.records import BOARD, CPU, champion, full_record, measured, record, square

from tuner.errors import InputError
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import Champion, Record, Role
from tuner.store import Store
from tuner.store.published import champions, entries, publish


def final(size: int, *samples_s: float, **more: object) -> Record:
    return record(square(size), role=Role.FINAL, measurement=measured(*samples_s), **more)


def crowned(size: int, time_s: float = 1e-3, **more: object) -> Champion:
    """A champion with a library that was measured in the same rounds."""
    samples = [time_s * (1 + 0.001 * (n % 7)) for n in range(21)]
    library = record(
        square(size), role=Role.BASELINE, kernel="cuBLAS", config={}, source_hash="",
        measurement=measured(*(1.5 * each for each in samples)),
    )  # fmt: skip
    given = {"baseline": library, "speedup": 1.5, "crowned_at": "2026-02-01T00:00:00.000000+00:00"} | more
    return champion(final(size, *samples), **given)


def test_what_is_published_is_read_back_as_published(store: Store, tmp_path: Path) -> None:
    best = replace(full_record(), role=Role.FINAL, origin="")
    cublas = {"role": Role.BASELINE, "kernel": "cuBLAS", "config": {}, "versions": {"library": "13"}}
    library = record(square(64), 2e-3, **cublas)
    told = champion(best, baseline=library, speedup=1.987654321, verdict="faster")
    noisy = Measurement(Outcome.MEASURED, "", (1.0,), circumstances={"finals_noise": 0.2})
    store.crown([told, champion(replace(final(32, 1.0), measurement=noisy))])
    (path,) = publish(store, tmp_path)
    assert path == tmp_path / "nvidia-h200" / "gemm.json"
    (found,) = champions("gemm", tmp_path)
    record_, baseline = found.record, found.baseline
    assert record_.tflops == pytest.approx(best.tflops, rel=1e-5)
    for name in ("time_s", "noise"):
        assert getattr(record_.measurement, name) == pytest.approx(getattr(best.measurement, name), rel=1e-5)
    assert len(record_.measurement.samples_s) == 7, "quantiles of 60"
    for name in ("error", "compiled"):
        assert getattr(record_.measurement, name) == getattr(best.measurement, name)
    assert list(record_.config.items()) == list(best.config.items())
    for name in ("problem", "regime", "role", "id", "source_hash", "versions"):
        assert getattr(record_, name) == getattr(best, name)
    assert record_.device == replace(best.device, uuid="")
    assert (baseline.kernel, baseline.role, baseline.id) == ("cuBLAS", Role.BASELINE, library.id)
    assert (baseline.versions, baseline.measurement.time_s) == ({"library": "13"}, 2e-3)
    assert (found.speedup, found.verdict, found.id) == (1.98765, "faster", told.id)
    assert (found.crowned_at, found.trials) == (told.crowned_at, told.trials)


def test_runners_up_are_the_other_finalists_and_the_best_trials(store: Store, tmp_path: Path) -> None:
    best = final(64, 1.0, config={"BM": 1})
    wrong = Measurement(Outcome.WRONG_RESULT, "wrong at 17 x 17")
    store.add(
        [
            record(square(64), 0.9, config={"BM": 1}),  # the champion's own trial
            record(square(64), 1.2, config={"BM": 2}), final(64, 1.3, config={"BM": 2}),
            record(square(64), 1.1, config={"BM": 3}), record(square(64), 0.5, config={"BM": 4}),
            record(square(64), config={"BM": 4}, role=Role.FINAL, measurement=wrong),
            record(square(64), config={"BM": 5}, measurement=Measurement(Outcome.PRUNED, "slow", (9.0,))),
            record(square(64), 0.1, config={"BM": 6}, regime="hot"),
            record(square(64), 0.1, config={"BM": 7}, source_hash="of old"),
            record(square(65), 0.1, config={"BM": 8}),
            record(square(64), 0.1, config={}, role=Role.BASELINE, kernel="cuBLAS"),
            *(record(square(64), 2.0 + size, config={"BM": size}) for size in range(10, 30)),
            record(square(64), 99.0, config={"BM": 99}, study="missing times of gemm"),
        ]
    )  # fmt: skip
    store.crown(champion(best))
    publish(store, tmp_path)
    (found,) = entries("gemm", tmp_path)
    listed = [(each.config["BM"], each.measurement.time_s, each.role) for each in found.runners_up]
    assert listed[:3] == [(3, 1.1, Role.TRIAL), (2, 1.3, Role.FINAL), (10, 12.0, Role.TRIAL)]
    assert len(listed) == 10 + 1
    assert listed[-1] == (99, 99.0, Role.TRIAL)  # slow, and measured to learn what it costs here
    assert {each.kernel for each in found.runners_up} == {"tiled"}
    ids = {each.id: each.measured_at for each in store.records(problem=square(64), device=BOARD)}
    assert all(ids[each.id] == each.measured_at for each in found.runners_up)


def test_a_file_is_text_for_review(store: Store, tmp_path: Path) -> None:
    """One config a line, and the same records make the same bytes."""
    for size in (128, 64):
        store.add(record(square(size), 2.0, config={"BM": 2}))
        store.crown(crowned(size))
    (path,) = publish(store, tmp_path)
    text = path.read_text()
    rows = text.splitlines()
    assert sum(row.startswith('      "config": {"BM": 64, "VECTOR": 4}') for row in rows) == 2
    assert sum(row.startswith('        {"kernel": "tiled", "config": {"BM": 2}') for row in rows) == 2
    assert [row.strip() for row in rows if '"problem"' in row] == [
        f'"problem": {{"shape": {{"m": {n}, "n": {n}, "k": {n}}}, "dtype": "float32", "layout": "nn"}},'
        for n in (64, 128)
    ]
    assert text.endswith("}\n")
    changed_ns = path.stat().st_mtime_ns
    assert publish(store, tmp_path) == [path]
    assert (path.read_text(), path.stat().st_mtime_ns) == (text, changed_ns)


def test_a_file_that_is_there_keeps_what_the_database_lacks(store: Store, tmp_path: Path) -> None:
    early, late = (f"2026-0{month}-01T00:00:00.000000+00:00" for month in (1, 3))
    with Store.open(f"sqlite:///{tmp_path}/other.db") as other:
        theirs = [crowned(64, crowned_at=early), crowned(96, crowned_at=late), crowned(128)]
        other.crown(theirs)
        publish(other, tmp_path)
    ours = [crowned(64), crowned(96), crowned(256)]
    store.crown(ours)
    publish(store, tmp_path)
    kept = [ours[0].id, theirs[1].id, theirs[2].id, ours[2].id]
    assert [each.id for each in champions("gemm", tmp_path)] == kept
    with Store.open(f"sqlite:///{tmp_path}/other.db") as other:
        publish(other, tmp_path)
    assert [each.id for each in champions("gemm", tmp_path)] == kept, "in whatever order they publish"


def test_devices_operations_and_own_kernels(store: Store, tmp_path: Path) -> None:
    on_cpu = record(square(64), device=CPU, role=Role.FINAL)
    gemv = record(replace(square(64), operation="gemv"), role=Role.FINAL)
    own = record(replace(square(64), operation="stencil"), role=Role.FINAL, origin="/home/me/own.py")
    store.crown([champion(each) for each in (record(square(64)), on_cpu, gemv, own)])
    assert publish(store, tmp_path, operation="gemv") == [tmp_path / "nvidia-h200" / "gemv.json"]
    assert publish(store, tmp_path, device=CPU.name) == [tmp_path / "amd-epyc-avx-512-2-cores" / "gemm.json"]
    assert len(publish(store, tmp_path)) == 3, "a kernel of one's own is published when its operation is named"
    assert publish(store, tmp_path, operation="stencil") == [tmp_path / "nvidia-h200" / "stencil.json"]
    assert "/home/me" not in (tmp_path / "nvidia-h200" / "stencil.json").read_text()
    assert publish(store, tmp_path, regime="hot") == []
    assert [each.record.device.name for each in champions("gemm", tmp_path)] == [CPU.name, BOARD.name]
    assert champions("transpose", tmp_path) == []


def test_a_file_is_read_again_when_it_changes(store: Store, tmp_path: Path) -> None:
    store.crown(crowned(64))
    publish(store, tmp_path)
    assert entries("gemm", tmp_path)[0] is entries("gemm", tmp_path)[0]
    store.crown(crowned(128))
    publish(store, tmp_path)
    assert len(entries("gemm", tmp_path)) == 2


@pytest.mark.parametrize(("text", "told"), [
    ("{", "is what `tuner records publish` writes"),
    ('{"format": 1}', "is what `tuner records publish` writes"),
    ('{"format": 99}', "has form 99 and this version knows forms up to 2; upgrade"),
])  # fmt: skip
def test_a_file_that_is_none_is_named(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "board").mkdir()
    (tmp_path / "board" / "gemm.json").write_text(text)
    with pytest.raises(InputError, match=rf"gemm\.json.*{told}|{told}.*gemm\.json"):
        champions("gemm", tmp_path)
