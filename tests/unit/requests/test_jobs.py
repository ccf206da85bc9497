"""The fair order of a queue, whatever is in it; and what a job's command is."""

from hypothesis import given
from hypothesis import strategies as st

from tuner.requests.jobs import fair
from tuner.requests.processes import arguments
from tuner.store.jobs import Job

JOBS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(-3, 3)), max_size=40)


def queued(told: list[tuple[str, int]]) -> list[Job]:
    return [
        Job({}, str(number), "node", name, "cpu", priority, number=number)
        for number, (name, priority) in enumerate(told, 1)
    ]


@given(JOBS, st.dictionaries(st.sampled_from("abcd"), st.sampled_from(("2026-01", "2026-02"))))
def test_submitters_take_turns_and_priorities_hold_within_one(
    told: list[tuple[str, int]], last: dict[str, str]
) -> None:
    jobs = queued(told)
    order = fair(jobs, last)
    assert sorted(job.number for job in order) == [job.number for job in jobs]
    for name in "abcd":
        mine = [(-job.priority, job.number) for job in order if job.submitter == name]
        assert mine == sorted(mine)
    left = {name: sum(job.submitter == name for job in jobs) for name in "abcd"}
    while order:
        turn = [name for name in "abcd" if left[name]]
        taken = [job.submitter for job in order[: len(turn)]]
        assert sorted(taken) == turn, "everyone who waits has a turn before anyone has another"
        order = order[len(turn) :]
        left = {name: count - (name in turn) for name, count in left.items()}


def test_whoever_waited_longest_is_first() -> None:
    order = fair(queued([("a", 0), ("b", 0), ("c", 0)]), {"a": "2026-02", "b": "2026-01"})
    assert [job.submitter for job in order] == ["c", "b", "a"]


def test_no_value_of_a_job_is_taken_for_an_option() -> None:
    problem = {
        "operation": "gemm", "shape": {"m": 1, "n": 2, "k": 3}, "dtype": "--db", "layout": "-x",
        "precision": "", "regime": "cold", "kernels": ["--help"], "file": "",
    }  # fmt: skip
    asked = {"kind": "problem", "problem": problem, "seconds": None, "trials": 5}
    told = arguments(Job(asked, "", "", "", "cuda:0"), None)  # type: ignore[arg-type]
    assert told[:2] == ["tune", "gemm"]
    assert all(each.startswith("--") and ("=" in each or each == "--json") for each in told[2:])
