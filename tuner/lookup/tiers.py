"""The tiers of a lookup, from the problem itself to a kernel's default; each answers or returns None."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tuner.declare.catalogue import Catalogue
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.devices.protocol import REGIMES
from tuner.lookup import answers
from tuner.lookup.answers import DEFAULT, EXACT, PREDICTED, UNMEASURED, Answer, Loss, Question, declared_problem
from tuner.lookup.asking import alike
from tuner.lookup.legality import allows, default_among
from tuner.lookup.snapshot import RULING, Snapshot, predictor
from tuner.lookup.stale import staleness
from tuner.results.measurement import KINDS_OF_INPUTS
from tuner.results.record import Champion, Record, Role, Subject, rank_in_time, rows_study

if TYPE_CHECKING:
    from tuner.store import Store


@dataclass(frozen=True)
class Case:
    """A question with all that answers it.

    Attributes:
        question: What is asked; its device is complete.
        snapshot: What is known.
        catalogue: Kernels as they are now.
        problem: The problem as declared now; None where it is not, and only its own records can answer.
        finishing: True for kernels alone that can apply an epilogue.
    """

    question: Question
    snapshot: Snapshot
    catalogue: Catalogue
    problem: Problem | None
    finishing: bool = False

    @property
    def store(self) -> Store | None:
        """The store, where it may have a record of the problem itself."""
        return self.snapshot.store if self.snapshot.has_problem(self.question.problem) else None

    def kernels(self, plain: bool = False) -> list[Kernel]:
        """The kernels that may answer by what was timed at other problems, as declared now.

        Args:
            plain: True for those, too, that are not declared for the problem's precision: these are tested at
                the problem itself, or the library is used.
        """
        operation, kind = self.question.problem.operation, self.question.device.kind
        only, catalogue, precision = self.question.kernel, self.catalogue, self.question.problem.precision
        return self.snapshot.once(
            ("kernels", operation, kind, only, precision, plain, self.finishing, id(catalogue)),
            lambda: [
                kernel
                for kernel in catalogue.kernels
                if kernel.operation == operation and only in ("", kernel.name) and kernel.kind == kind
                if plain or precision in kernel.scope.precisions
                if kernel.scope.epilogues or not self.finishing
            ],
            catalogue,
        )

    def models(self) -> Sequence[Any]:
        """The models of the operation, one for each device that has one."""
        question = self.question
        return self.snapshot.models(question.problem.operation, question.regime, question.problem.arithmetic)

    def may_run(self, record: Record) -> bool:
        """False where a record's config breaks a rule of its kernel as it is now.

        So is one of a kernel that is not declared for the problem's precision, unless its finals tested that it
        keeps the precision's promise. A kernel that is not declared any more, or in a file that was not read,
        cannot be asked.
        """
        named = record.kernel, self.question.problem.operation, self.question.device.kind
        kernels = (one for one in self.catalogue.kernels if one.name == record.kernel)
        declared = next((one for one in kernels if (one.name, one.operation, one.kind) == named), None)
        if self.problem is None or declared is None:
            return True
        circumstances = record.measurement.circumstances
        if self.problem.precision not in declared.scope.precisions and KINDS_OF_INPUTS not in circumstances:
            return False
        return allows(declared, self.problem, self.question.device, record.config)


def exact(case: Case) -> Answer | None:
    """The champion of this very problem: chosen, of this board, not stale, the latest: in that order."""
    question, store, own, ruling = case.question, case.store, None, None
    if store is not None:
        place = question.problem, question.device, question.regime
        ruling = case.snapshot.once((RULING,), store.ruling)
        named = question.kernel or None
        own = store.champion(*place, named, confirmed=question.confirmed, ruling=ruling)
    both = own, case.snapshot.published_champion(question)
    champions = [champion for champion in both if champion is not None and case.may_run(champion.record)]

    def merit(champion: Champion) -> tuple[bool, bool, bool, str]:
        uuid, is_chosen = champion.record.device.uuid, ruling is not None and champion.id in ruling.chosen
        stale, _ = staleness(champion.record, question.catalogue, question.device)
        of_board = bool(uuid) and uuid == question.device.uuid
        return is_chosen, of_board, not stale, rank_in_time(champion.crowned_at)

    best = max(champions, key=merit, default=None)
    if best is None:
        return None
    if ruling is not None and best.baseline is not None and best.id in ruling.behind:
        library = best.baseline.kernel
        reason = f"{library} was seen to be faster since this champion was crowned"
        return Answer(best, question=question, library=library, reasons=(reason,))
    return Answer(best, question=question)


def of_rows(case: Case) -> Answer | None:
    """The config for a range of the dim that must not change the bits of a row, from the latest such study.

    None beyond the largest size of that study; its configs are proven to be of one class of rows up to there.
    """
    question, store, dim = case.question, case.snapshot.store, case.question.invariant
    size = question.problem.dims.get(dim)
    if store is None or size is None:
        return None
    study = rows_study(question.problem, question.device.name, question.regime, dim)
    records = store.records(study=study, device=question.device)
    proven = [record for record in records if record.measurement.rows]
    latest = proven[-1].measurement.rows if proven else ""
    tops = {one.problem.dims[dim]: one for one in proven if one.measurement.rows == latest}
    record = tops.get(min((top for top in tops if top >= size), default=0))
    if record is None or not case.may_run(record):
        return None
    beside = (one for one in records if (one.role, one.session) == (Role.BASELINE, record.session))
    top = record.problem.dims[dim]
    why = f"rows of class {latest} for any {dim} up to {max(tops)}; the config is that of {dim} = {top}"
    loss = Loss() if size == top else _unmeasured(f"timed at {dim} = {top}")
    champion = _beside(record, next(beside, None), {})
    return Answer(champion, answers.INVARIANT, loss, question=question, reasons=(why,))


def best_trial(case: Case) -> Answer | None:
    """The fastest trial of a study whose finals never came, against the baseline as last measured.

    Kernels as they are now come first. Trials are timed one by one and the best of many is partly luck, so
    its speed is an upper bound.
    """
    question, store = case.question, case.store
    if store is None or question.confirmed:
        return None
    of = question.problem, question.device, question.regime
    now = {kernel.name: kernel.source_hash for kernel in case.kernels()}
    anyhow = {question.kernel: ""} if question.kernel else None
    record = store.best_record(*of, kernels=now) or store.best_record(*of, kernels=anyhow)
    if record is None or not case.may_run(record):
        return None
    baseline = store.best_record(*of, role=Role.BASELINE)
    return Answer(_beside(record, baseline, store.counts(*of)), provisional=True, question=question)


def _beside(record: Record, library: Record | None, trials: Mapping[str, int]) -> Champion:
    """A config that was not crowned, and the library."""
    ours, theirs = record.measurement.time_s, library.measurement.time_s if library else None
    return Champion(record, library, theirs / ours if ours and theirs else 0.0, "ambiguous", trials)


def predicted(case: Case) -> Answer | None:
    """What the device's model says, or the problems that were tuned there."""
    return _of_device(case, case.question.device.name)


def similar_device(case: Case) -> Answer | None:
    """What is known of a device that is like this one, whose own loss nobody has measured."""
    where, operation = case.question.device, case.question.problem.operation
    what, names = alike(where, [*(model.device for model in case.models()), *case.snapshot.devices()])
    answers = (
        _of_device(case, name, f"no {operation} is known on {where.name}; {name} is {what}") for name in names
    )
    return next((answer for answer in answers if answer is not None), None)


def _of_device(case: Case, name: str, alike: str = "") -> Answer | None:
    """What the model of a device says, or without one the problems that were tuned there.

    Args:
        case: What is asked.
        name: Of the device.
        alike: In what it is like the question's; empty where it is the same.
    """
    question, snapshot, extra = case.question, case.snapshot, predictor()
    problem, catalogue = case.problem, case.catalogue
    if problem is None or extra is None:
        return None
    model = next((model for model in case.models() if model.device.name == name), None)
    answer = extra.answer(model, question, problem, case.kernels(), alike) if model is not None else None
    if answer is None:
        of = question.problem.operation, question.problem.arithmetic, question.device.kind
        subject = Subject(*of, question.regime, name)
        tuned = snapshot.tuned(subject, catalogue)
        key = "near", subject, id(catalogue), question.kernel, case.finishing
        near = snapshot.once(key, lambda: extra.near(tuned, case.kernels()), catalogue) if tuned else None
        answer = near.answer(question, problem, alike) if near is not None else None
    result: Answer | None = answer
    return result


def default(case: Case) -> Answer | None:
    """The default of the last kernel of the ladder that has a legal config worth trying, or a legal one.

    The library runs, if there is one, since nobody has seen a kernel beat it here.
    """
    question, problem = case.question, case.problem
    if problem is None:
        return None
    last = default_among(case.kernels(plain=True), problem, question.device)
    if last is None:
        return None
    kernel, config = last
    library = library_of(case)
    reasons = [
        f"nothing is known of {question.problem.operation} on {question.device.name} or a device like it"
    ]
    if library:
        reasons.append(f"{library} is the safer choice: no kernel was seen to be faster here")
    return Answer(
        None, DEFAULT, _unmeasured("nothing is known here"), question=question,
        default=(kernel.name, config), library=library, reasons=tuple(reasons), stale=False,
    )  # fmt: skip


def by_record(case: Case) -> Answer | None:
    """Of the first tier that rests on records: those of the problem itself, without its epilogue, of others.

    Where a survey of the device was made with that epilogue, its model goes before what is known without.
    """
    own, question = exact(case) or best_trial(case), case.question
    if own is None and question.problem.epilogue:
        models = [model for model in case.models() if model.device.name == question.device.name]
        is_surveyed = any(case.problem and model.knows(case.problem) for model in models)
        own = predicted(case) if is_surveyed else from_plain(case)
    return own or predicted(case) or similar_device(case)


def by_another_regime(case: Case) -> Answer | None:
    """An answer from what was timed in another regime; those with caches in the same state come first.

    As part of a graph or not makes a difference of microseconds; full or empty caches may turn the order of
    configs round.
    """
    question, state = case.question, case.question.regime.partition("-")[0]
    for regime in sorted(
        (name for name in REGIMES if name != question.regime), key=lambda name: state not in name
    ):
        answer = by_record(replace(case, question=replace(question, regime=regime)))
        if answer is not None:
            loss, library = answer.loss, answer.library
            if answer.match == EXACT:
                loss = _unmeasured(f"timed {regime} for this very problem, and not {question.regime}")
                library = "" if answer.use == "kernel" else answer.use
            elif loss.cases:
                loss = replace(loss, said=f"{regime}: {loss.said}")
            reason = f"nothing was timed {question.regime} on such a device; this was timed {regime}"
            return _answering(answer, question, reason, loss, library)
    return None


def _answering(answer: Answer, question: Question, reason: str, loss: Loss, library: str) -> Answer:
    """An answer to another question as one to this."""
    return replace(answer, question=question, loss=loss, library=library, reasons=(reason, *answer.reasons))


def from_plain(case: Case) -> Answer | None:
    """What is known of a problem without its epilogue; None where nothing is that may be used with it."""
    question, problem = case.question, case.problem
    if problem is None:
        return None
    plain = replace(question, problem=question.problem.plain)
    without = replace(case, question=plain, problem=declared_problem(plain, case.catalogue), finishing=True)
    kernels = {kernel.name: kernel for kernel in without.kernels()}
    for tier in (exact, best_trial, predicted, similar_device):
        answer = tier(without)
        kernel = kernels.get(answer.kernel) if answer is not None else None
        if answer is None or kernel is None:
            continue
        if allows(kernel, problem, question.device, answer.config):
            reason = (
                f"nothing was timed with epilogue {question.problem.epilogue}, which adds one pass over the "
                "result; answered without it"
            )
            loss = answer.loss
            if answer.match == EXACT:
                loss = _unmeasured(f"timed for this very problem without {question.problem.epilogue}")
            library = "" if answer.use == "kernel" else library_of(case) or answer.use
            answer = replace(answer, match=PREDICTED if answer.match == EXACT else answer.match)
            return _answering(answer, question, reason, loss, library)
    return None


def _unmeasured(why: str) -> Loss:
    return Loss(UNMEASURED, 0, f"not measured: {why}")


def library_of(case: Case) -> str:
    """The library's name for a declared problem; empty where there is none."""
    assert case.problem is not None, "asked only for a declared problem"
    baseline = case.problem.operation.baselines.get(case.question.device.kind)
    return baseline.named(case.problem) if baseline is not None else ""
