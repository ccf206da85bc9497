"""Answers to problems with an epilogue from the same problem without: the product is what takes the time.

An epilogue touches each element of the result once, m n operations beside 2 m n k. So where a problem with one
was not tuned itself, what is known without it answers, if the kernel applies epilogues, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tuner.declare.catalogue import Catalogue
from tuner.lookup.answers import EXACT, NEAREST_SHAPE, UNMEASURED, Answer, Loss, declared_problem
from tuner.lookup.legality import legal
from tuner.lookup.tiers import Case

#: Catalogue -> its kernels that apply epilogues, as a catalogue; of the last one that was asked for.
_LAST: list[tuple[Catalogue, Catalogue]] = []


def from_plain(case: Case, tiers: Sequence[Callable[[Case], Answer | None]]) -> Answer | None:
    """What is known of the problem without its epilogue; None where nothing is that may be used with it.

    Args:
        case: A problem with an epilogue.
        tiers: Asked in turn.
    """
    question = case.question
    if not question.problem.epilogue or case.problem is None:
        return None
    plain = replace(question, problem=question.problem.plain)
    without = replace(
        case,
        question=plain,
        catalogue=_applying(case.catalogue),
        problem=declared_problem(plain, case.catalogue),
    )
    answers = (tier(without) for tier in tiers)
    found = next((each for each in answers if each is not None and _may_run(case, each)), None)
    return None if found is None else _told(case, found)


def _applying(catalogue: Catalogue) -> Catalogue:
    """The kernels that apply epilogues; the same object for the same catalogue, since much is kept by it."""
    if not _LAST or _LAST[0][0] is not catalogue:
        kernels = tuple(each for each in catalogue.kernels if each.epilogues)
        _LAST[:] = [(catalogue, Catalogue(catalogue.operations, kernels))]
    return _LAST[0][1]


def _may_run(case: Case, found: Answer) -> bool:
    """Whether kernel and config of an answer are right with the epilogue."""
    assert case.problem is not None, "asked only for a declared problem"
    kernel = next((each for each in case.kernels() if each.name == found.kernel), None)
    if kernel is None or not kernel.epilogues or set(found.config) != {each.name for each in kernel.parameters}:
        return False
    return bool(legal(kernel, case.problem, case.question.device, [found.config])[0][0])


def _told(case: Case, found: Answer) -> Answer:
    """An answer without the epilogue as one to the question."""
    epilogue = case.question.problem.epilogue
    reason = (
        f"nothing was timed with epilogue {epilogue}, which adds one pass over the result; answered without it"
    )
    library = ""
    if found.use != "kernel":
        assert case.problem is not None, "asked only for a declared problem"
        baseline = case.problem.operation.baselines.get(case.question.device.kind)
        library = baseline.named(case.problem) if baseline is not None else found.use
    if found.match == EXACT:
        said = f"not measured: timed for this very problem without {epilogue}"
        found = replace(found, match=NEAREST_SHAPE, loss=Loss(UNMEASURED, 0, said))
    return replace(found, question=case.question, library=library, reasons=(reason, *found.reasons))
