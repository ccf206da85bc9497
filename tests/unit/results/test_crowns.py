"""Which champion answers after pins, rollbacks and freezes."""

import pytest

from tuner.results.record import ProblemKey
from tuner.results.verdict import Act, Crown, rules_of

PROBLEM = ProblemKey("gemm", (("m", 64), ("n", 64), ("k", 64)), "float32", "nn")
#: Champions a to d, crowned on four days at noon.
HISTORY = [(name, f"2026-01-0{day}T12:00:00.000000+00:00") for day, name in enumerate("abcd", 1)]


def entry(act: Act, champion: str = "", day: float = 5) -> Crown:
    when = f"2026-01-{int(day):02}T{int(day % 1 * 24):02}:00:00.000000+00:00"
    return Crown(act, PROBLEM, "cuda", "NVIDIA H200", "cold", champion, "me", made_at=when)


@pytest.mark.parametrize(
    ("log", "answers"),
    [
        ([], "d"),
        ([entry(Act.PIN, "b")], "b"),
        ([entry(Act.PIN, "b"), entry(Act.UNPIN, day=6)], "d"),
        ([entry(Act.ROLLBACK, "b")], "b"),
        # One that is crowned after the rollback answers again.
        ([entry(Act.ROLLBACK, "b", day=3.9)], "d"),
        ([entry(Act.ROLLBACK, "b"), entry(Act.PIN, "c", day=6)], "c"),
        ([entry(Act.ROLLBACK, "b"), entry(Act.PIN, "c", day=6), entry(Act.UNPIN, day=7)], "c"),
        ([entry(Act.PIN, "a"), entry(Act.ROLLBACK, "c", day=6)], "c"),
        ([entry(Act.FREEZE, day=2.9)], "b"),
        ([entry(Act.FREEZE, day=2.9), entry(Act.UNFREEZE, day=6)], "d"),
        ([entry(Act.FREEZE, day=2.9), entry(Act.FREEZE, day=6)], "b"),
        ([entry(Act.FREEZE, day=2.9), entry(Act.PIN, "d", day=6)], "d"),
        # A pin of a champion that another database has bars nobody here.
        ([entry(Act.PIN, "elsewhere")], "d"),
        ([entry(Act.CONFIRM, "a"), entry(Act.DOUBT, "d")], "d"),
    ],
)
def test_who_answers(log: list[Crown], answers: str) -> None:
    assert max(rules_of(log, HISTORY).allowed(HISTORY)) == answers


def test_a_later_doubt_takes_a_confirmation_back() -> None:
    log = [entry(Act.CONFIRM, "a"), entry(Act.CONFIRM, "b"), entry(Act.DOUBT, "a", day=6)]
    assert rules_of(log, HISTORY).confirmed == {"b"}
