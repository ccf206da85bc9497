"""Configs in the files of vLLM, SGLang, Triton and Helion: written from champions, taken as first trials."""

import functools
import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from fixtures.commands import Told, assert_refused, caller
from fixtures.records import BOARD, champion, measured, record

import tuner
from tuner.declare.catalogue import from_file
from tuner.declare.space import Config
from tuner.results.measurement import CompileReport, compare
from tuner.results.record import Pair, ProblemKey, Role
from tuner.store import Store

KERNELS = Path(__file__).parents[2] / "fixtures" / "triton_kernels.py"
DECLARED = """
from pathlib import Path
import tuner
OPERATION = tuner.Operation(
    name="product", dims=DIMS, dtypes=("DTYPE",), work=lambda p: tuner.Work(2.0 * p.M * p.N * p.K, 1.0),
    tensors=lambda p: (tuner.Tensor("c", (p.M, p.N), p.dtype, output=True),),
    reference=lambda xp, p, arrays: None,
)
TILES = {"BLOCK_SIZE_M": (16, 64), "BLOCK_SIZE_N": (32,), "BLOCK_SIZE_K": (16,), "GROUP_SIZE_M": (1, 8)}
VALUES = TILES | {"num_warps": (4,)}
KERNEL = tuner.Kernel(
    "product", "tiles", "triton", tuner.Source(Path("tiles.triton.py")),
    launch=lambda p, c: tuner.Launch((1,), (128,)),
    parameters=tuple(tuner.choice(name, *values) for name, values in VALUES.items()),
    starts=({name: values[0] for name, values in VALUES.items()},),
)
"""
EXPERTS, BYTES = {"N": 32, "K": 24, "E": 2}, {"N": 32, "K": 24}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    monkeypatch.setenv("TUNER_DB", f"sqlite:///{tmp_path}/studies.db")
    return caller(capsys)


def config(m: int, group: int = 1) -> dict[str, int]:
    return {"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 16, "GROUP_SIZE_M": group, "num_warps": 4}


TABLE = {16: config(16), 64: config(64, 8), 100: config(64, 8)}


def declared(folder: Path, shape: dict[str, int], table: dict[int, dict[str, int]] = TABLE) -> Path:
    """A file that declares a product, whose champions are in the database."""
    file = folder / f"{len(shape)}.py"
    dtype = "float32" if "E" in shape else "uint8"
    file.write_text(DECLARED.replace("DIMS", str(("M", *shape))).replace("DTYPE", dtype))
    (folder / "tiles.triton.py").write_text("def product(): pass")
    catalogue = from_file(file)
    [kernel] = catalogue.kernels
    times = measured(*[1e-3] * 6, compiled=CompileReport(compiler="Triton 3.6.0"))
    with Store.open(f"sqlite:///{folder}/studies.db") as store:
        for m, values in table.items():
            key = ProblemKey.of(catalogue.operations["product"].problem({"M": m, **shape}))
            named = {"kernel": "tiles", "config": values, "source_hash": kernel.source_hash}
            names = (f"tiles {Config(one)}" for one in (values, config(16)))
            pair = Pair(*names, 2e-3, compare([1e-3] * 6, [2e-3] * 6))
            of = record(key, role=Role.FINAL, measurement=times, **named)
            store.crown(champion(of, pairs=(pair,)))
    return file


def sets(shape: dict[str, int]) -> list[str]:
    return [f"--set={dim}={size}" for dim, size in shape.items()]


MOE, FP8 = (
    "E=2,N=32,device_name=NVIDIA_H200,dtype=float32.json",
    "N=32,K=24,device_name=NVIDIA_H200,dtype=fp8_w8a8",
)


@pytest.mark.parametrize(("form", "shape", "name", "content"), [
    ("vllm", EXPERTS, MOE, '"GROUP_SIZE_M": 8'),
    ("sglang", EXPERTS, f"configs/triton_3_6_0/{MOE}", '"64": {'),
    ("vllm", BYTES, f"{FP8},block_shape=[128,128].json", '"100": {'),
    ("sglang", BYTES, f"{FP8},block_shape=[128, 128].json", '"16": {'),
    ("triton", EXPERTS, "tiles_configs.py", "'GROUP_SIZE_M': 8}, num_warps=4),  # M=64, M=100"),
    ("helion", EXPERTS, "tiles,M=16.json", '"l2_groupings": [\n    1'),
])  # fmt: skip
def test_champions_of_all_m_lie_where_others_look_and_become_configs_to_try(
    form: str, shape: dict[str, int], name: str, content: str, tmp_path: Path, told: Told
) -> None:
    file = declared(tmp_path, shape)
    given = ["--device", BOARD.name, "--format", form, "-o", str(tmp_path)]
    code, out, err = told("export", str(file), "--set=M=1", *sets(shape), *given)
    assert code == 0, err
    table, *_, provenance = map(Path, out.splitlines())
    assert table == tmp_path / name
    assert content in table.read_text()
    kept = json.loads(provenance.read_text())
    assert (kept["files"][0], [*kept["rows"]]) == (name, ["16", "64", "100"])
    assert [row["is_default"] for row in kept["rows"].values()] == [True, False, False]
    assert kept["rows"]["64"]["versions"]["triton"] == "3.6.0"
    assert kept["rows"]["64"]["beside_default"]["ratio"] == 2.0
    whole = sets(shape | ({"M": 16} if form in ("triton", "helion") else {}))
    call = ["records", "import", str(table), "--kernel-file", str(file), *whole, "--device", BOARD.name]
    assert ("0 were known" in told(*call)[1], "0 records" in told(*call)[1]) == (True, True)
    first, *_ = tuner.records("product", role="trial")
    assert (first["dim.M"], first["config.BLOCK_SIZE_M"], first["outcome"]) == (16, 16, "PRUNED")


def test_what_no_table_can_hold_is_refused(tmp_path: Path, told: Told) -> None:
    file, table = declared(tmp_path, EXPERTS, {}), tmp_path / "E=2,N=32,device_name=NVIDIA_H200.json"
    call = ["export", str(file), "--set=M=1", *sets(EXPERTS), "--format", "vllm", "-o", str(tmp_path)]
    assert_refused(told(*call, "--device", BOARD.name), 1, "got nothing tuned for product 1")
    table.write_text(json.dumps({"16": config(16) | {"SPLIT_K": 2}}))
    call = ["records", "import", str(table), "--kernel-file", str(file), "--set=K=24"]
    assert_refused(told(*call), 2, "a config sets the parameters of tiles", "SPLIT_K")


def test_a_study_tries_what_a_server_runs_first_and_tells_the_loss(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch: Any = pytest.importorskip("torch")
    pytest.importorskip("triton")
    for name, value in (("TUNER_CACHE", str(tmp_path)), ("TRITON_INTERPRET", "1")):
        monkeypatch.setenv(name, value)
    table = tmp_path / "device_name=Interpreted_board.json"
    table.write_text('{"4096": {"BLOCK_SIZE_M": 1024}, "512": {"BLOCK_SIZE_M": 512}}')
    tuned = functools.partial(
        tuner.tune, runpy.run_path(str(KERNELS))["twice"], [torch.zeros(1000), torch.zeros(1000), 1000],
        {"BLOCK_SIZE_M": [256, 64, 128, 512, 1024, 2048, 4096]}, grid="ceil_div(M, BLOCK_SIZE_M)",
        reference=lambda a: 2 * a, device="interpreted", seconds=60, progress=False,
    )  # fmt: skip
    file = tuned(trials=1).declaration
    assert told("records", "import", str(table), "--kernel-file", str(file))[0] == 0
    result = tuned(trials=3)
    assert {trial.config["BLOCK_SIZE_M"] for trial in result.trials} == {256, 512, 1024}
    played = {name for pair in result.champion.pairs for name in (pair.one, pair.other)}
    assert {"twice BLOCK_SIZE_M=512", "twice BLOCK_SIZE_M=256"} <= played  # the nearest M's, and the default
