"""Few configs for many shapes: the cover, the function that is written, and what is timed for it."""

import ast
import json
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from fixtures.fake_device import BOARD as FAKE
from fixtures.fake_device import write_device
from fixtures.lookup_records import BOARD, NOWHERE, crown, gemm, library, record, source_hash, tiled
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.cli.main import command_line
from tuner.declare.catalogue import builtin
from tuner.declare.hardware import DeviceInfo
from tuner.declare.space import Config, Space
from tuner.lookup.snapshot import TunedProblem, gather
from tuner.report.distil import Distilled, cover, distilled, python_text, shapes_of
from tuner.results.record import Role, Subject
from tuner.store import Store

CATALOGUE = builtin()
GEMM = CATALOGUE.operations["gemm"]
SHAPES = (
    (64, 64, 64, "nn"), (1000, 1024, 512, "nt"), (4096, 4096, 4096, "tn"), (7, 4099, 33, "tt"),
    (2048, 2048, 64, "nn"),
)  # fmt: skip
#: Kernels of which one asks nothing of the shape.
KERNELS = ("naive", "register_tiled", "warp_tiled")
SUBJECT = Subject("gemm", "float32", "cuda", "cold", BOARD.name)
Choose = Callable[..., tuple[str | None, Mapping[str, Any]]]


def test_the_cover_takes_what_helps_most_and_exchanges_what_greed_took() -> None:
    speeds = np.array([[0.9, 1.0, 0.0], [0.9, 0.0, 1.0], [0.9, 1.0, 0.0], [0.9, 0.0, 1.0]])
    assert cover(speeds, 1) == [0]
    assert sorted(cover(speeds, 2)) == [1, 2]


def study(store: Store, shape: tuple[int, int, int, str], chance: random.Random) -> None:
    """Sampled legal configs of CUDA kernels at a shape, with times by chance; the fastest is crowned."""
    m, n, k, layout = shape
    problem, found = GEMM.problem({"m": m, "n": n, "k": k}, layout=layout), []
    for kernel in CATALOGUE.of("gemm", "cuda", KERNELS):
        space = Space.build(kernel.parameters, kernel.constraints, problem, BOARD, limit=2_000)
        for at in chance.sample(range(len(space)), min(5, len(space))):
            more = {"kernel": kernel.name, "config": dict(space[at]), "source_hash": kernel.source_hash}
            time_s = chance.uniform(1e-3, 3e-3)
            found.append(record(gemm(*shape), time_s, role=Role.FINAL, **more))
    store.add(found)
    best = min(found, key=lambda each: each.measurement.time_s or 0.0)
    crown(store, best, library(gemm(*shape)), chance.uniform(0.5, 2.0))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[TunedProblem]]:
    chance = random.Random(3)
    with Store.open(f"sqlite:///{tmp_path_factory.mktemp('shapes')}/studies.db") as store:
        for shape in SHAPES:
            study(store, shape, chance)
        yield gather(store, SUBJECT, CATALOGUE, NOWHERE)


@pytest.fixture(scope="module")
def found(data: list[TunedProblem]) -> Distilled:
    return distilled(shapes_of(data, SUBJECT, CATALOGUE), 4)


@pytest.fixture(scope="module")
def choose(found: Distilled) -> Choose:
    names: dict[str, Any] = {}
    exec(compile(python_text(found), "choose.py", "exec"), names)
    function: Choose = names["choose"]
    return function


def test_few_configs_are_chosen_and_what_they_cost_is_told(found: Distilled) -> None:
    assert 1 <= len(found.chosen) <= 4
    best, decided = found.losses["best"], found.losses["decided"]
    assert 0 <= best["mean"] <= decided["mean"] <= 1
    assert best["worst"] >= best["mean"]
    assert {losses["shapes"] for losses in found.losses.values()} == {len(SHAPES)}
    assert distilled(found.shapes, 100).losses["best"]["mean"] == pytest.approx(0.0, abs=1e-6)


def test_the_function_imports_nothing_and_takes_what_is_fastest(found: Distilled, choose: Choose) -> None:
    text = python_text(found)
    assert not [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    for first, place in zip(found.decided, found.shapes.rows, strict=True):
        assert first is not None
        assert choose(**place.problem.dims, layout=place.problem.layout) == found.shapes.columns[first]
    assert all(len(line) <= 120 for line in text.splitlines())
    assert len(found.chosen) == text.count("\n    ('")


@settings(max_examples=60)
@given(
    m=st.integers(1, 5000), n=st.integers(1, 5000), k=st.integers(1, 5000),
    layout=st.sampled_from(["nn", "nt", "tn", "tt"]),
)  # fmt: skip
def test_the_function_answers_nothing_illegal(choose: Choose, m: int, n: int, k: int, layout: str) -> None:
    name, values = choose(m, n, k, layout)
    if name is None:
        assert values == {}
        return
    kernel = CATALOGUE.of("gemm", "cuda", (name,))[0]
    problem = GEMM.problem({"m": m, "n": n, "k": k}, layout=layout)
    binding = [each for each in kernel.constraints if not each.for_speed]
    assert all(bool(each.rule(problem, BOARD, Config(values))) for each in binding)


# --- what is missing is timed ---------------------------------------


@pytest.fixture
def on_fake(tmp_path: Path) -> tuple[str, str]:
    """A fake device, and a database: ``tiled`` at three shapes, each with a config that the others lack."""
    device = DeviceInfo.from_json(
        {**BOARD.to_json(), **FAKE, "architecture": "sm_90", "max_threads_per_sm": 2048, "warp_size": 32}
    )
    url = f"sqlite:///{tmp_path}/studies.db"
    with Store.open(url) as store:
        for size, block in ((32, 4), (48, 8), (64, 16)):
            own = {"kernel": "tiled", "config": tiled(block), "source_hash": source_hash("tiled")}
            of = record(gemm(size, size, size), 5e-3, device=device, role=Role.FINAL, **own)
            crown(store, of, library(gemm(size, size, size), device=device), 0.4)
    return write_device(tmp_path / "device.json", info=device.to_json()), url


def told(*arguments: str) -> Any:
    done = CliRunner().invoke(command_line, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    return json.loads(done.stdout)


def test_distil_times_what_is_missing_on_the_device(on_fake: tuple[str, str], tmp_path: Path) -> None:
    spec, url = on_fake
    arguments = ("distil", "gemm", "--configs", "2", "--device", spec, "--db", url)
    before = told(*arguments, "--no-measure")
    assert before["missing"]
    after = told(*arguments, "-o", str(tmp_path / "choose.py"))
    assert after["missing"] == []
    assert after["loss"]["best"]["unmeasured"] == 0
    assert "def choose(m, n, k" in (tmp_path / "choose.py").read_text()
    with Store.open(url, read_only=True) as store:
        fresh = store.records(study="missing times of gemm")
    assert {each.role for each in fresh} == {Role.TRIAL}
    assert all(each.measurement.samples_s and each.device.name == "Fake board" for each in fresh)
    assert len(fresh) >= len(before["missing"])


def test_a_device_that_is_elsewhere_cannot_be_timed_on(on_fake: tuple[str, str]) -> None:
    _, url = on_fake
    arguments = ["distil", "gemm", "--configs", "2", "--device", "fake board", "--db", url]
    done = CliRunner().invoke(command_line, [*arguments, "--measure"])
    assert "which is not here" in str(done.exception)
    shown = CliRunner().invoke(command_line, arguments, catch_exceptions=False)
    assert (shown.exit_code, "times are missing" in shown.stderr) == (0, True)
    assert "the best of them" in shown.stdout
