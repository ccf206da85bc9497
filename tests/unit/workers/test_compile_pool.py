"""What the compiler's report rules out."""

import pytest
from fixtures.fake_device import BOARD

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Rendered
from tuner.declare.launch import Launch
from tuner.results.measurement import CompileReport, Outcome
from tuner.workers import compile_pool
from tuner.workers.bench import CompiledConfig
from tuner.workers.compile_pool import ruled_out

DEVICE = DeviceInfo.from_json(BOARD)


@pytest.mark.parametrize(
    ("block", "report", "outcome", "reason"),
    [
        ((1024,), {"registers": 64}, None, ""),
        ((1024,), {"registers": 65}, Outcome.LAUNCH_FAILED, "a block has at most 65536 registers"),
        ((64,), {"spill_bytes": compile_pool.MAX_SPILL_BYTES}, None, ""),
        ((64,), {"spill_bytes": 516}, Outcome.PRUNED, "spills 516 bytes a thread"),
        (None, {"spill_bytes": 10**6, "registers": 10**6}, None, ""),
    ],
)
def test_the_compilers_report_rules_out_what_cannot_launch_or_win(
    block: tuple[int, ...] | None, report: dict[str, int], outcome: Outcome | None, reason: str
) -> None:
    source = Rendered("", "toy", "cuda", Launch((1,), block) if block else None)
    refused = ruled_out(CompiledConfig(source, b"", CompileReport(**report), 0.25), DEVICE)
    assert (refused and refused.outcome) == outcome
    if refused is not None:
        assert reason in refused.reason
        assert refused.stages_s == {"compile": 0.25}
