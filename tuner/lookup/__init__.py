"""Answers which kernel and config to use for a problem on a device; no device is touched.

Tiers answer in turn: the problem's own champion (or the best trial of a study whose finals never came), the
device's model or what was tuned there, a similar device; then the same in another regime; the kernel's default.
Each says what such answers have cost where that was measured, and where the library is the safer choice.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.declare.catalogue import Catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import Problem
from tuner.errors import NothingFound
from tuner.lookup.answers import EXACT, INVARIANT, Answer, Loss, Question, declared_problem, tune_command
from tuner.lookup.asking import completed_device, kept_open, parse_device, parse_key
from tuner.lookup.demand import DEMAND
from tuner.lookup.snapshot import ANSWER, Snapshot
from tuner.lookup.stale import builtin_now, installed_versions, staleness
from tuner.lookup.tiers import Case, by_another_regime, by_record, default, of_rows
from tuner.results.record import ProblemKey

if TYPE_CHECKING:
    from tuner.store import Store

__all__ = ["Answer", "Loss", "Question", "answer", "best", "staleness", "tune_command"]


def best(
    problem: Problem | ProblemKey | str,
    device: DeviceInfo | str = "",
    *,
    regime: str = "cold",
    kernel: str | None = None,
    db: str = "",
    confirmed: bool = False,
    invariant: str = "",
) -> Answer:
    """Which kernel and config to use for a problem on a device, or the library.

    The database stays open, and what was read of it is kept while it is true.

    Args:
        problem: A problem, its key, or words such as ``gemm 4096 4096 4096 float32 nt``.
        device: ``cpu``, ``cuda:0``, or a name such as ``NVIDIA H200``; the GPU of this machine when empty, or
            its CPU where it has none.
        regime: How time was taken; where nothing was timed like that, another regime answers and is told.
        kernel: Only this kernel.
        db: URL of the database; that of ``TUNER_DB``, else ``studies.db`` in this folder, when empty. There
            may be none: published results answer, too.
        confirmed: True to take of champions only those that won again in a fresh process, or were published.
        invariant: ``m`` for a config of a set of ``tuner tune --invariant m``, with which a row of the result
            has the same bits for any M.

    Raises:
        NothingFound: No config is legal.
        InputError: The words name no problem, or no device that is known.
        DeviceTrouble: There is no such device here.
        StoreTrouble: The database cannot be used.
    """
    where = parse_device(device) if isinstance(device, str) else device
    result = answer(kept_open(db), problem, where, regime, kernel, confirmed=confirmed, invariant=invariant)
    if result.match not in (EXACT, INVARIANT) and not (regime != "cold" or kernel or db):
        DEMAND.asked(result)
    return result


def answer(
    source: Store | Snapshot | None,
    problem: Problem | ProblemKey | str,
    device: DeviceInfo | str,
    regime: str = "cold",
    kernel: str | None = None,
    catalogue: Catalogue | None = None,
    *,
    published: Path | None = None,
    confirmed: bool = False,
    invariant: str = "",
) -> Answer:
    """Which kernel and config to use, or the library.

    Args:
        source: Where records are, or a state of them that was opened before; None without a database.
        problem: What is to be computed: a problem, its key or words, as for `best`.
        device: Where: a device of this machine, or a name such as ``NVIDIA H200`` or a uuid.
        regime: How time was taken; where nothing was timed like that, another regime answers and is told.
        kernel: Only this kernel.
        catalogue: Kernels as they are now; the built-in ones when None. Whether a kernel of a user's own
            file has changed is told only for a catalogue that is given: a lookup runs no code that a
            database names.
        published: Folder of published results; the project's own when None.
        confirmed: True to take of champions only those that won again in a fresh process, or were published.
        invariant: ``m`` for a config of a set of ``tuner tune --invariant m``, with which a row of the result
            has the same bits for any M.

    Raises:
        NothingFound: No config is legal, or the operation is not declared and nothing is recorded of the
            problem itself; the message gives the command to tune it.
        UnknownName: A device name that there is no record of.
    """
    snapshot = source if isinstance(source, Snapshot) else Snapshot.open(source, published)
    declared = catalogue or builtin_now()

    def work() -> Answer:
        full = snapshot.once(("device", device), lambda: completed_device(device, snapshot.devices()))
        key = parse_key(problem, declared)
        question = Question(key, full, regime, kernel or "", catalogue, confirmed, invariant)
        case = Case(question, snapshot, declared, declared_problem(question, declared))
        result = of_rows(case) if invariant else by_record(case) or by_another_regime(case) or default(case)
        if result is None:
            raise NothingFound(_nothing(case))
        if result.champion is None:
            return result
        versions = (
            installed_versions(result.champion.record, declared) if isinstance(device, DeviceInfo) else {}
        )
        stale, why = staleness(result.champion.record, catalogue, full, versions)
        if stale and invariant:
            raise NothingFound(f"{question} has no rows that are proven now: {why}")
        return replace(result, stale=stale, stale_reason=why)

    key = ANSWER, problem, device, regime, kernel, confirmed, invariant, id(declared), catalogue is None
    return snapshot.once(key, work, declared)


def _nothing(case: Case) -> str:
    """Why there is no answer, and what to do."""
    question, store = case.question, case.snapshot.store
    declared = case.catalogue.operations.get(question.problem.operation)
    origin = str(declared.origin or "") if declared else ""
    if question.invariant:
        why = "or not for as many rows"
    elif case.problem is None:
        why = "and its operation is not declared here, so that nothing else can answer"
        known = store.champions(question.problem.operation) if store is not None else []
        origin = origin or (known[0].record.origin if known else "")
    elif case.kernels(plain=True):
        why = "and no config of its kernels is legal there"
    else:
        why = f"and no kernel {question.kernel or 'for that device'} is declared"
    return f"{question} is not tuned, {why}. Run `{tune_command(question, origin)}`"
