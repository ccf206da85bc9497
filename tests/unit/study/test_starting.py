"""What a study tries first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fixtures.fake_device import BEST, BOARD, TOY

from tuner.declare.catalogue import builtin, from_file
from tuner.declare.hardware import DeviceInfo
from tuner.declare.space import Config
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import Champion, ProblemKey, Record, Role
from tuner.store import Store
from tuner.store.published import champions as published
from tuner.study.starting import NEIGHBOURS, alternating, declared_starts, near_champions

CATALOGUE = from_file(TOY)
BLOCKS, *_ = CATALOGUE.of("toy")
DEVICE = DeviceInfo.from_json(BOARD)
KEY = ProblemKey.of(CATALOGUE.operation("toy").problem({"n": 1000}))


def record(n: int = 1000, config: dict[str, Any] | None = None, **more: Any) -> Record:
    given = {
        "device": DEVICE, "regime": "cold", "role": Role.FINAL, "kernel": "blocks", "config": config or BEST,
        "source_hash": BLOCKS.source_hash, "measurement": Measurement(Outcome.MEASURED, samples_s=(1e-3,)),
        "work": {"flops": 1.0, "bytes": 1.0}, "versions": {"compiler": "fake 1", "driver": "1.0"},
    } | more  # fmt: skip
    return Record(replace(KEY, shape=(("n", n),)), **given)


def test_a_study_starts_from_champions_of_the_nearest_problems_and_defaults() -> None:
    near = {"BLOCK": 64, "ITEMS": 1, "ORDER": "blocked"}
    with Store.open("sqlite://") as store:
        for n in (10, 900, 1200, 5000, 100_000, 10**6, 10**7):
            config = near if n == 900 else BEST | {"ITEMS": 2}
            store.crown(Champion(record(n, config), None, 0.0, "first", {}))
        store.crown(Champion(record(1000, kernel="gone"), None, 0.0, "first", {}))
        starts = [*near_champions(store, [BLOCKS], KEY, DEVICE), *declared_starts([BLOCKS])]
    assert starts[0] == ("blocks", near)
    assert starts[NEIGHBOURS:] == [("blocks", each) for each in BLOCKS.first_configs()]
    assert {kernel for kernel, _ in starts} == {"blocks"}


def test_published_champions_of_such_a_device_are_near_ones_too() -> None:
    (h200, *_) = [each.record for each in published("gemm") if each.record.device.name == "NVIDIA H200"]
    kernels = builtin().of("gemm", "cuda", dtype=h200.problem.dtype)
    with Store.open("sqlite://") as store:
        assert near_champions(store, kernels, h200.problem, h200.device)[0] == (
            h200.kernel, Config(h200.config),
        )  # fmt: skip
        other = replace(h200.device, name="another")
        assert near_champions(store, kernels, h200.problem, other) == []


def test_the_same_shape_in_another_dtype_is_nearer_than_in_another_layout() -> None:
    with Store.open("sqlite://") as store:
        for items, problem in ((2, replace(KEY, layout="turned")), (4, replace(KEY, dtype="float64"))):
            final = replace(record(config=BEST | {"ITEMS": items}), problem=problem)
            store.crown(Champion(final, None, 0.0, "first", {}))
        found = near_champions(store, [BLOCKS], KEY, DEVICE)
    assert [config["ITEMS"] for _, config in found] == [4, 2]


def test_what_the_model_keeps_and_what_is_beside_it_take_turns() -> None:
    a, b, c, d, x, y, z = (("k", Config({"P": name})) for name in "abcdxyz")
    assert alternating([a, b, c, d], [x, y, z]) == [a, b, x, c, y, d, z]
    assert alternating([a], []) == [a]
