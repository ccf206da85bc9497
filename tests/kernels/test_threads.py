"""The threads of the CPU kernels: they share jobs, sleep, end, and disturb nobody."""

import os
import threading
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest
import threadpoolctl
from fences import loaded
from fixtures.waiting import eventually

from tuner.declare.folders import kernels_folder

#: A kernel: job i adds 1 to element i; with `meet`, every job waits until so many have begun.
KERNEL = """

@njit(**INNER)
def work(crew, member, like):
    out, jobs, meet = place_at(word(crew, 0), like), word(crew, 1), word(crew, 2)
    job = take(crew, 0)
    while job < jobs:
        finish(crew, 1)
        wait_until(crew, 1, meet)
        out[job] += 1.0
        finish(crew, 0)
        job = take(crew, 0)
    if member == 0:
        wait_until(crew, 0, jobs)


def add_one(out, threads, meet=0):
    run_together(threads, out.dtype, (address_of(out), out.size, meet))
"""


@pytest.fixture(scope="module")
def crews(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The text and a kernel as a module that borrows no threads; its own end after a second."""
    return changed(tmp_path_factory, "crews", ("IDLE_S = 5", "IDLE_S = 1"), ("TEAM = _team()", "TEAM = None"))


@pytest.fixture(scope="module")
def borrowed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The text as it is, and a kernel; NumPy's OpenBLAS has two threads."""
    with threadpoolctl.threadpool_limits(2):
        module = changed(tmp_path_factory, "borrowing")
        if module.TEAM is None:
            pytest.skip("NumPy has no OpenBLAS that lends its threads")
        yield module


def changed(folders: pytest.TempPathFactory, name: str, *changes: tuple[str, str]) -> ModuleType:
    text = (kernels_folder() / "threads.numba.py").read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folders.mktemp(name) / f"{name}_under_test.py"
    path.write_text(text + KERNEL, encoding="utf-8")
    module = loaded(path)
    module.add_one(np.zeros(3), 1)  # compiles; the first call works alone
    return module


@pytest.mark.parametrize(("module", "threads"), [("crews", 3), ("borrowed", 2)])
def test_callers_do_not_disturb_each_other(module: str, threads: int, request: pytest.FixtureRequest) -> None:
    """So many threads of a program call at once, each on an array of its own."""
    add_one, outs = request.getfixturevalue(module).add_one, [np.zeros(50) for _ in range(4)]

    def call(out: np.ndarray) -> None:
        for _ in range(50):
            add_one(out, threads)

    callers = [threading.Thread(target=call, args=(out,)) for out in outs]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert all((out == 50).all() for out in outs)


def test_threads_of_openblas_are_borrowed_and_numpy_works_on_with_them(borrowed: ModuleType) -> None:
    eventually(lambda: ours() == 0, 20)  # those of the test before
    a, out, small = np.ones((300, 300)), np.zeros(1000), np.zeros(2)
    for times in range(1, 20):
        borrowed.add_one(out, 2)
        assert (out == times).all()
        assert (a @ a == 300).all()
    borrowed.add_one(small, 2, meet=2)  # each of two jobs waits for the other
    assert (small == 1).all()
    assert ours() == 0


def test_a_limit_on_openblas_leaves_the_threads_that_are_asked_for(borrowed: ModuleType) -> None:
    small = np.zeros(2)
    with threadpoolctl.threadpool_limits(1):
        borrowed.add_one(small, 2)
        borrowed.add_one(small, 2, meet=2)
    assert (small == 2).all()


def ours() -> int:
    return sum(thread.name == "kernel" for thread in threading.enumerate())


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("jobs", [0, 1, 5, 1000])
def test_every_job_is_done_once(crews: ModuleType, threads: int, jobs: int) -> None:
    out = np.zeros(jobs)
    for times in range(1, 10):
        crews.add_one(out, threads)
        assert (out == times).all()


def test_threads_work_at_the_same_time_are_as_many_as_asked_and_are_used_again(crews: ModuleType) -> None:
    eventually(lambda: ours() == 0, 20)
    out = np.zeros(4)
    for _ in range(5):
        crews.add_one(out, 4, meet=4)  # each of four jobs waits for the others: no thread can do two
        assert ours() == 3
    assert (out == 5).all()


def test_threads_end_after_a_while_and_give_back_their_memory(crews: ModuleType) -> None:
    out = np.zeros(4)
    crews.add_one(out, 4, meet=4)
    eventually(lambda: ours() == 0, 20)
    assert not crews._idle[4, out.dtype]
    crews.add_one(out, 4, meet=4)
    assert (out == 2).all()


def test_numpys_threads_are_left_as_they_are_and_work_beside(crews: ModuleType) -> None:
    before = [(pool["filepath"], pool["num_threads"]) for pool in threadpoolctl.threadpool_info()]
    a, out, products = np.ones((300, 300)), np.zeros(64), list[np.ndarray]()
    beside = threading.Thread(target=lambda: products.extend(a @ a for _ in range(20)))
    beside.start()
    for _ in range(200):
        crews.add_one(out, 2)
    beside.join(60)
    assert (out == 200).all()
    assert [bool((product == 300).all()) for product in products] == [True] * 20
    assert [(pool["filepath"], pool["num_threads"]) for pool in threadpoolctl.threadpool_info()] == before


def test_a_forked_child_starts_threads_of_its_own(crews: ModuleType) -> None:
    out = np.zeros(2)
    crews.add_one(out, 2, meet=2)
    child = os.fork()
    if child == 0:
        try:
            crews.add_one(out, 2, meet=2)
            os._exit(0 if (out == 2).all() else 1)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
