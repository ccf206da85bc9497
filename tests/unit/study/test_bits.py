"""Classes of bits: which configs share one, what does not repeat its bits, and studies that keep to a class."""

from pathlib import Path

import pytest
from fixtures.fake_device import BEST, BEST_S, database, rule, stored, study, write_device

from tuner.cli.formatting import answer_rows
from tuner.declare import catalogue
from tuner.devices.detect import find
from tuner.errors import InputError
from tuner.lookup import Answer
from tuner.results.measurement import Measurement, Outcome
from tuner.results.objectives import read_bits
from tuner.store import Store
from tuner.study.requests import StudyRequest
from tuner.study.study import run_study

DECLARED = """
from pathlib import Path
from tuner import Kernel, Operation, Source, Tensor, Work, choice

OPERATION = Operation(
    name="sums", dims=("n",),
    tensors=lambda p: (Tensor("x", (p.n, 3), p.dtype), Tensor("y", (p.n,), p.dtype, output=True)),
    work=lambda p: Work(flops=2.0 * p.n, bytes=16.0 * p.n),
    reference=lambda xp, p, arrays: arrays["x"].astype(xp.float64).sum(axis=1), terms=lambda p: 3,
)
KERNEL = Kernel(
    operation="sums", name="plain", target="cpu", source=Source(Path("sums.numba.py")), idea="adds in an order",
    parameters=(choice("ORDER", "up", "again", "down", "turns"),), starts=({"ORDER": "up"},),
)
"""
SOURCE = """
RUNS = []


def sums(x, y, n):
    RUNS.append(0)
    down = ORDER == "down" or (ORDER == "turns" and len(RUNS) % 2)
    y[:] = (x[:, 2] + x[:, 1]) + x[:, 0] if down else (x[:, 0] + x[:, 1]) + x[:, 2]
"""
#: Slower than `BEST`, with other bits.
SAME = {"BLOCK": 128, "ITEMS": 1, "ORDER": "striped"}


def test_an_order_of_sums_is_a_class_and_a_result_that_varies_is_not_repeatable(tmp_path: Path) -> None:
    (tmp_path / "sums.numba.py").write_text(SOURCE)
    (tmp_path / "sums.py").write_text(DECLARED)
    declared = catalogue.from_file(tmp_path / "sums.py")
    asked = StudyRequest(
        declared.operation("sums").problem({"n": 5000}), declared.of("sums"), (find("cpu"),), "hot",
        seconds=None, seed=1, sampler="bruteforce", objectives=("time", "error"), finals_s=0.2,
    )  # fmt: skip
    with Store.open(database(tmp_path)) as store:
        result = run_study(asked, store)
        found: dict[str, Measurement] = {
            str(trial.config["ORDER"]): trial.measurement for trial in store.records() if trial.role == "trial"
        }
    assert found["turns"].outcome is Outcome.NOT_REPEATABLE
    assert found["up"].bits == found["again"].bits != found["down"].bits
    assert len(result.progress.classes_s) == 2
    champion = result.champion
    assert champion.record.measurement.bits in result.progress.classes_s


def test_bits_that_vary_are_a_champions_only_where_a_study_allows_them(tmp_path: Path) -> None:
    rules = [rule(BEST, latency_s=BEST_S, error_rel=3e-7, fault="varies"), rule({}, latency_s=4 * BEST_S)]
    board = write_device(tmp_path / "device.json", rules=rules)
    crowned = [study(tmp_path, board, bits=bits).champion.record for bits in ("any", "")]
    assert [dict(record.config) == BEST for record in crowned] == [True, False]
    assert [record.measurement.bits == "varies" for record in crowned] == [True, False]


def test_a_study_keeps_to_a_class_and_another_champion_is_crowned_only_without_it(tmp_path: Path) -> None:
    rules = [rule(BEST, latency_s=BEST_S, error_rel=3e-7), rule(SAME, latency_s=1.2 * BEST_S, error_rel=1e-7)]
    rules.append(rule({}, latency_s=4 * BEST_S, error_rel=1.2e-7))
    board = write_device(
        tmp_path / "device.json", rules=rules, baseline_s=2 * BEST_S, baseline_error_rel=1.2e-7, noise=1e-4
    )
    crowned = []
    for more in ({"error_limit": 1.5}, {"bits": read_bits("keep")}, {}, {"bits": "library"}):
        result = study(tmp_path, board, **more)
        crowned.append((dict(result.champion.record.config), Answer(result.champion).to_json()))
    assert [config for config, _ in crowned[:3]] == [SAME, SAME, BEST]
    bits = [answer["bits"] for _, answer in crowned]
    assert bits[0] == bits[1]
    assert {answer["baseline"]["bits"] for _, answer in crowned} == {bits[3]}
    assert set(result.progress.classes_s) == set(bits)
    assert len(set(bits)) == 3
    assert any(name == "bits" and bits[0] in text for name, text in answer_rows(crowned[0][1]))
    # What was timed is kept as it is, and is no trial of another class in a study without one.
    assert {trial.measurement.bits for trial in stored(tmp_path)} - {""} == set(bits)
    with pytest.raises(InputError, match="keep, library, any or a class of 12 hexadecimal digits, got 'same'"):
        read_bits("same")
