"""What a study needs before its first trial."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fixtures.fake_device import BEST, BOARD, TOY

from tuner.declare.catalogue import from_file
from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import Operation, Problem
from tuner.errors import DeclarationError, InputError
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import ProblemKey, Record, Role
from tuner.store import Store
from tuner.study.requests import check_regime, legal_spaces
from tuner.study.session import check_fits, past_records, study_name

CATALOGUE = from_file(TOY)
TOYS = CATALOGUE.operation("toy")
BLOCKS, CHUNKS = CATALOGUE.of("toy")
DEVICE = DeviceInfo.from_json(BOARD)


def toy(n: int = 1000, operation: Operation = TOYS) -> Problem:
    return operation.problem({"n": n})


def test_a_study_is_named_by_problem_device_regime_and_sources() -> None:
    names = {
        study_name(ProblemKey.of(toy(n)), device, regime, kernels)
        for n in (1000, 2000)
        for device in (DEVICE, replace(DEVICE, name="Other"))
        for regime in ("cold", "hot")
        for kernels in ([BLOCKS], [BLOCKS, CHUNKS])
    }
    assert len(names) == 16
    first = study_name(ProblemKey.of(toy()), DEVICE, "cold", [BLOCKS, CHUNKS])
    assert first == study_name(ProblemKey.of(toy()), DEVICE, "cold", [CHUNKS, BLOCKS])
    assert first.startswith("toy 1000 float32 plain on Fake board, cold, kernels ")


def test_what_fits_is_let_through_and_what_does_not_is_told_with_sizes() -> None:
    needed = toy(1 << 20).memory_bytes
    check_fits(toy(1 << 20), needed, DEVICE)
    with pytest.raises(InputError, match=r"free memory \(0\.0352 GiB on Fake board\), .* needs 0\.0352 GiB"):
        check_fits(toy(1 << 20), needed - 1, DEVICE)


@pytest.mark.parametrize("what", ["tensors", "terms"])
def test_a_declaration_that_fails_is_told(what: str) -> None:
    def failing(problem: Problem) -> Any:
        return {}["nothing"]

    changed: dict[str, Any] = {what: failing}
    with pytest.raises(
        DeclarationError, match=r"of operation 'toy' must hold .* fail with KeyError: 'nothing'"
    ):
        check_fits(toy(operation=replace(TOYS, **changed)), 1 << 60, DEVICE)


def test_graphs_are_for_gpus() -> None:
    check_regime("hot", "cpu")
    check_regime("hot-graph", "cuda")
    with pytest.raises(InputError, match="a CPU is timed cold or hot, got regime 'hot-graph'"):
        check_regime("hot-graph", "cpu")


def test_kernels_without_a_legal_config_are_left_out() -> None:
    none = replace(
        BLOCKS, name="none", constraints=(*BLOCKS.constraints, replace(BLOCKS.constraints[0], rule=never))
    )
    spaces = legal_spaces([none, BLOCKS], toy(), DEVICE)
    assert list(spaces) == ["blocks"]
    assert len(spaces["blocks"]) == 58


def never(problem: Any, device: Any, config: Any) -> bool:
    return config.BLOCK < 0  # type: ignore[no-any-return]


# --- what is known from before ------------------------------------------------------------


def record(n: int = 1000, config: dict[str, Any] | None = None, **more: Any) -> Record:
    given = {
        "device": DEVICE, "regime": "cold", "role": Role.TRIAL, "kernel": "blocks", "config": config or BEST,
        "source_hash": BLOCKS.source_hash, "measurement": Measurement(Outcome.MEASURED, samples_s=(1e-3,)),
        "work": {"flops": 1.0, "bytes": 1.0}, "versions": {"compiler": "fake 1", "driver": "1.0"},
    } | more  # fmt: skip
    return Record(ProblemKey.of(toy(n)), **given)


def test_past_records_are_those_of_the_same_problem_device_regime_and_versions() -> None:
    same = record()
    others = [
        record(n=2000),
        record(device=replace(DEVICE, name="Other", uuid="FAKE-2")),
        record(regime="hot"),
        record(role=Role.FINAL),
        record(versions={"compiler": "fake 2", "driver": "1.0"}),
        record(versions={"compiler": "fake 1", "driver": "2.0"}),
    ]
    with Store.open("sqlite://") as store:
        store.add([same, *others])
        versions = {"compiler": "fake 1", "driver": "1.0"}
        assert past_records(store, ProblemKey.of(toy()), DEVICE, "cold", versions) == [same]
