"""A study on this CPU: the library with the core type that it chose, and with the best one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.fake_device import database, request, stored

from tuner.devices.detect import find
from tuner.results.record import Role
from tuner.store import Store
from tuner.study.study import run_study

#: Width of the CPU's vectors -> an older core type, and the one that suits it.
CORE_TYPES = {64: ("Haswell", "SkylakeX"), 32: ("Nehalem", "Haswell")}


def test_a_blas_that_takes_the_cpu_for_an_older_one_is_measured_as_what_it_is_too(tmp_path: Path) -> None:
    cpu = find("cpu")
    if cpu.info.vector_bytes not in CORE_TYPES:
        pytest.skip("OpenBLAS has one core type for this CPU")
    older, best = CORE_TYPES[cpu.info.vector_bytes]
    mistaken = replace(cpu, environment=(("OPENBLAS_CORETYPE", older),))
    asked = request("cpu", found=(mistaken,), trials=1, finals_s=0.1)
    with Store.open(database(tmp_path)) as store:
        result = run_study(asked, store)
    assert result.progress.best_blas is not None
    assert result.progress.best_blas[0] == best
    first, own, last = stored(tmp_path, Role.BASELINE)
    # Before the search with either, then with its own choice in the finals.
    assert [each.versions["blas_core_type"] for each in (first, own, last)] == [older, best, older]
    assert own.measurement.time_s == result.progress.best_blas[1]
    assert {each.versions["blas_threads"] for each in (first, own, last)} == {
        str(int(each.measurement.circumstances["threads"])) for each in (first, own, last)
    }
    assert result.champion is not None
    assert result.champion.baseline == last
