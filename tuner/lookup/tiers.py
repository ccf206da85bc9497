"""The tiers of a lookup, from the problem itself to a kernel's default; each answers or returns None."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tuner.declare.catalogue import Catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.lookup.answers import (
    DEFAULT,
    NEAREST_SHAPE,
    SIMILAR_DEVICE,
    UNMEASURED,
    Answer,
    Loss,
    Question,
)
from tuner.lookup.choice import (
    Choice,
    choose,
    library_name,
    library_reasons,
    reasons_for,
    time_of,
)
from tuner.lookup.device_similarity import alike
from tuner.lookup.features import Floats
from tuner.lookup.legality import default_among, legal
from tuner.lookup.matrix import Subject
from tuner.lookup.model.predict import Model as TimeModel
from tuner.lookup.model.shelf import models
from tuner.lookup.predicted import from_model
from tuner.lookup.quality import expected_loss
from tuner.lookup.snapshot import Snapshot, SubjectData
from tuner.lookup.stale import staleness
from tuner.results.record import Champion, Record, Role, rank_in_time

if TYPE_CHECKING:
    from tuner.store import Store

#: A problem tells of another one's library only if no dim differs by a larger factor.
NEAR = 4.0


@dataclass(frozen=True)
class Case:
    """A question with all that answers it.

    Attributes:
        question: What is asked; its device is complete.
        snapshot: What is known.
        catalogue: Kernels as they are now.
        problem: The problem as declared now; None where it is not, and only its own records can answer.
    """

    question: Question
    snapshot: Snapshot
    catalogue: Catalogue
    problem: Problem | None

    @property
    def subject(self) -> Subject:
        """What the question is about, whatever its shape."""
        asked = self.question
        return Subject(asked.problem.operation, asked.problem.arithmetic, asked.device.kind, asked.regime)

    @property
    def data(self) -> SubjectData:
        """What is known of the subject."""
        return self.snapshot.data(self.subject, self.catalogue)

    @property
    def own_data(self) -> SubjectData:
        """What is known of the subject on the device, with others where that is little."""
        return self.snapshot.data(self.snapshot.near(self.subject, self.question.device.name), self.catalogue)

    @property
    def store(self) -> Store | None:
        """The store, where it may have a record of the problem itself."""
        return self.snapshot.store if self.snapshot.has_problem(self.question.problem) else None

    def kernels(self) -> list[Kernel]:
        """The kernels that may answer, as declared now."""
        return [
            kernel
            for kernel in self.catalogue.kernels
            if (kernel.operation, kernel.target) == (self.question.problem.operation, self.question.device.kind)
            and self.question.kernel in ("", kernel.name)
        ]

    def models(self) -> list[TimeModel]:
        """The models of the operation, one for each device that has one."""
        of = self.question.problem.operation, self.question.regime
        return self.snapshot.known(("models", *of), lambda: models(*of, self.snapshot.published))

    def may_run(self, record: Record) -> bool:
        """False where a record's config breaks a rule of its kernel as it is now.

        A kernel that is not declared any more, or in a file that was not read, cannot be asked.
        """
        declared = [kernel for kernel in self.kernels() if kernel.name == record.kernel]
        if self.problem is None or not declared:
            return True
        return bool(legal(declared[0], self.problem, self.question.device, [record.config])[0][0])


def exact(case: Case) -> Answer | None:
    """The champion of this very problem: one of this board first, then what is not stale, then the latest."""
    question = case.question
    store, own = case.store, None
    if store is not None:
        place = question.problem, question.device, question.regime
        own = store.champion(*place, question.kernel or None, confirmed=question.confirmed)
        if own is not None and store.is_chosen(own) and case.may_run(own.record):
            return Answer(own, question=question)
    found = [each for each in (own, case.snapshot.published_champion(question)) if each is not None]
    found = [each for each in found if case.may_run(each.record)]
    if not found:
        return None

    def merit(champion: Champion) -> tuple[bool, bool, str]:
        uuid = champion.record.device.uuid
        stale, _ = staleness(champion.record, question.catalogue, question.device)
        return bool(uuid) and uuid == question.device.uuid, not stale, rank_in_time(champion.crowned_at)

    return Answer(max(found, key=merit), question=question)


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
    ours, theirs = record.measurement.time_s, baseline.measurement.time_s if baseline else None
    speedup = theirs / ours if ours and theirs else 0.0
    champion = Champion(record, baseline, speedup, "ambiguous", store.counts(*of))
    return Answer(champion, provisional=True, question=question)


def predicted(case: Case) -> Answer | None:
    """What the device's model of times says."""
    if case.problem is None:
        return None
    found = [each for each in case.models() if each.device.name == case.question.device.name]
    return from_model(found[0], case.question, case.problem, case.kernels()) if found else None


def nearest_shape(case: Case) -> Answer | None:
    """A config that was timed at other shapes on this device, where that has no model."""
    asked = case.question
    if case.problem is None:
        return None
    places = case.own_data.matrix.places

    def fits(number: int) -> bool:
        place = places[number]
        return place.device.name == asked.device.name and place.problem != case.problem

    return _from_elsewhere(case, case.own_data, case.own_data.places(fits), NEAREST_SHAPE, [])


def similar_device(case: Case) -> Answer | None:
    """A config that was timed on a device that is like this one."""
    if case.problem is None:
        return None
    found = _by_model_of_a_similar_device(case, case.problem)
    if found is not None:
        return found
    places = case.data.matrix.places
    what, kin = alike(case.question.device, (place.device for place in places))
    names = {device.name for device in kin}
    if not names:
        return None
    named = ", ".join(sorted(names))
    why = [f"no {case.subject.operation} is known on {case.question.device.name}; {named} is {what}"]
    asked = case.data.places(lambda at: places[at].device.name in names)
    return _from_elsewhere(case, case.data, asked, SIMILAR_DEVICE, why)


def _by_model_of_a_similar_device(case: Case, problem: Problem) -> Answer | None:
    """What the model of a device like this one says of it, whose own loss nobody has measured."""
    models = case.models()
    what, kin = alike(case.question.device, (each.device for each in models))
    why = f"{case.subject.operation} was not surveyed on {case.question.device.name}; {{}} is {what}"
    told = (
        from_model(each, case.question, problem, case.kernels(), why.format(each.device.name))
        for each in models
        if each.device in kin
    )
    return next((each for each in told if each is not None), None)


def _from_elsewhere(case: Case, data: SubjectData, asked: Floats, match: str, why: list[str]) -> Answer | None:
    problem, question = case.problem, case.question
    assert problem is not None, "asked only for a declared problem"
    choice = choose(data, problem, question.device, asked, kernel=question.kernel)
    if choice is None:
        return None
    choice = _with_all_cores(case, data, choice)
    loss = expected_loss(data, match, problem, question.device)
    library, told = _safer(data, problem, question.device, choice, loss)
    reasons = [*why, *reasons_for(data, choice), *told]
    time = time_of(data, choice)
    if time.record is not None and time.runner_up is not None and not time.runner_up.record_id:
        reasons.append(f"its time was published beside record {time.record.id}, without its own record's id")
    return Answer(
        _champion(case, data, choice), match, loss, question=question, library=library, reasons=tuple(reasons)
    )


def _safer(
    data: SubjectData, problem: Problem, device: DeviceInfo, choice: Choice, loss: Loss
) -> tuple[str, list[str]]:
    """The library's name unless the config is expected to be faster by more than such answers lose; and why."""
    order = [int(at) for at in np.argsort(-choice.weights, kind="stable") if choice.weights[at] > 0]
    library = library_name(data, problem, device, order)
    if not library:
        return "", []
    if math.isnan(choice.library):
        return library, [f"{library} was not timed beside any near problem, and is the safer choice"]
    gain, may_lose = (1 - choice.loss) / (1 - choice.library), loss.expected
    if may_lose >= UNMEASURED:
        return library, [f"{library} is the safer choice: what such answers lose was not measured"]
    if not _is_near(data, problem, order):
        return library, [f"{library} is the safer choice: no known problem has all dims within {NEAR:g} x"]
    if gain * (1 - may_lose) > 1:
        return "", []
    where = "; ".join(library_reasons(data, choice))
    if choice.by_library:
        return library, [f"{library} is expected to be {1 / gain - 1:.1%} faster than this config: {where}"]
    return library, [
        f"{library} is the safer choice: this config is expected to be {gain - 1:.1%} faster, and such answers "
        f"may lose {may_lose:.1%} of speed; {where}"
    ]


def _is_near(data: SubjectData, problem: Problem, order: Sequence[int]) -> bool:
    """Whether one of the places has every dim within a factor of this problem's."""
    known = [data.matrix.places[at].problem.dims for at in order]
    return any(all(1 / NEAR <= each[dim] / size <= NEAR for dim, size in problem.shape) for each in known)


def _with_all_cores(case: Case, data: SubjectData, choice: Choice) -> Choice:
    """On a CPU with more or fewer cores, threads in proportion, where that is legal and worth trying."""
    kernel = data.matrix.kernels[choice.kernel]
    name = kernel.threads
    threads, cores = data.matrix.columns[choice.column][1].get(name), case.question.device.cores
    before = data.matrix.places[choice.place].device.cores
    if not isinstance(threads, int) or threads < 2 or not cores or not before or cores == before:
        return choice
    values = [value for each in kernel.parameters if each.name == name for value in each.values]
    fitting = [value for value in values if isinstance(value, int) and value <= threads * cores / before]
    if not fitting or max(fitting) == choice.config[name] or case.problem is None:
        return choice
    config = Config({**choice.config, name: max(fitting)})
    if not legal(kernel, case.problem, case.question.device, [config])[1][0]:
        return choice
    others = [each for each in choice.changed.split(", ") if each and not each.startswith(f"{name}=")]
    what = f"{name}={max(fitting)} for {name}={threads}, since {cores} cores are not {before}"
    return replace(choice, config=config, changed=", ".join([*others, what]))


def _stored(data: SubjectData, store: Store | None, numbers: Sequence[int]) -> dict[int, Record]:
    """A store's records by number, each read once."""
    read: dict[int, Record] = data.kept.setdefault("records", {})
    missing = [number for number in numbers if number not in read]
    if store is not None and missing:
        from tuner.store.matrix import numbered

        read |= numbered(store, missing)
    return read


def _champion(case: Case, data: SubjectData, choice: Choice) -> Champion:
    """The record that a choice rests on, with the library's from beside it."""
    store = case.snapshot.store
    place, time = data.matrix.places[choice.place], time_of(data, choice)
    numbers = [each for each in (time.number, place.beside) if isinstance(each, int)]
    stored = _stored(data, store, numbers)
    if time.number is not None:
        record = stored[time.number]
    else:
        assert time.record is not None, "a time is a store's or published"
        record = time.runner_up.as_record(time.record) if time.runner_up is not None else time.record
    if choice.config != record.config:
        record = replace(record, config=dict(choice.config))
    beside = stored.get(place.beside) if isinstance(place.beside, int) else place.beside
    speedup = 0.0
    if place.champion is not None and place.speedup > 0:
        # A lucky time of a search is no better than the champion of the finals.
        speedup = place.speedup * place.times[place.champion].time_s / max(time.time_s, place.best_s)
    return Champion(record, beside, speedup, "ambiguous", {})


def default(case: Case) -> Answer | None:
    """The default of the last kernel of the ladder that has a legal config worth trying, or a legal one.

    The library runs, if there is one, since nobody has seen a kernel beat it here.
    """
    question, problem = case.question, case.problem
    if problem is None:
        return None
    found = default_among(case.kernels(), problem, question.device)
    if found is None:
        return None
    kernel, config = found
    baseline = problem.operation.baselines.get(question.device.kind)
    library = baseline.named(problem) if baseline else ""
    reasons = [
        f"nothing is known of {question.problem.operation} on {question.device.name} or a device like it"
    ]
    if library:
        reasons.append(f"{library} is the safer choice: no kernel was seen to be faster here")
    return Answer(
        None, DEFAULT, expected_loss(case.data, DEFAULT, problem, question.device), question=question,
        default=(kernel.name, config), library=library, reasons=tuple(reasons), stale=False,
    )  # fmt: skip


#: What rests on records, in the order in which it is asked: those of the problem itself, and of others.
OWN: tuple[Callable[[Case], Answer | None], ...] = (exact, best_trial)
TIERS: tuple[Callable[[Case], Answer | None], ...] = (*OWN, predicted, nearest_shape, similar_device)
