"""Answers that were not given before: computed in threads, few at a time, so that others are not held up."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tuner.declare.catalogue import Catalogue
from tuner.errors import InputError, TunerError, UnknownName
from tuner.lookup.stale import builtin_now
from tuner.service.errors import told as error_told
from tuner.service.json_text import told_as_json
from tuner.service.questions import KEYS, Asked, asked_of
from tuner.service.responses import in_thread
from tuner.service.shelf import Body, View, etag
from tuner.service.state import Service

#: Bodies that are remembered by the text of their query; forgotten with each snapshot.
MOST_QUERIES, LONGEST_QUERY = 20_000, 600
#: Seconds after which many questions of one request let others go on.
TURN_S = 0.02


class Answered(NamedTuple):
    """An answer as it is sent.

    Attributes:
        body: The whole JSON text.
        tag: Its entity tag.
        number: Of the snapshot.
        told: What it was made of.
    """

    body: bytes
    tag: str
    number: int
    told: Body


class KnownBodies:
    """Answers of the present snapshot by the text of their query."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self._kept: dict[bytes, Answered] = {}

    def get(self, query: bytes) -> Answered | None:
        """Body, entity tag, snapshot and match, if the same query was answered before."""
        return self._kept.get(query)

    def put(self, query: bytes, found: Answered) -> None:
        """Remembers an answer."""
        if len(query) <= LONGEST_QUERY and b"snapshot" not in query:
            if len(self._kept) >= MOST_QUERIES:
                self._kept.clear()
            self._kept[query] = found


async def first_answer(service: Service, query: Mapping[str, str]) -> Answered:
    """The answer to a question that was not asked before.

    One that rests on records takes a millisecond or two, one by a model several times that: those wait for each
    other only, one at a time.

    Raises:
        InputError: It is no question.
        NothingFound: As `View.answer`, or there is no snapshot of that number.
    """
    if query.get("snapshot"):
        return await in_thread(service.deep, lambda: _answered(service, *asked_in(service, query)))
    view, asked = service.shelf.present, question_in(query)
    if view.is_known(asked):
        return _answered(service, view, asked)
    limit = service.quick if view.is_quick(asked) else service.deep
    return await in_thread(limit, lambda: _answered(service, view, asked))


def _answered(service: Service, view: View, asked: Asked) -> Answered:
    found = view.body(asked)
    more = service.shelf.retracted(view, asked)
    if view.differs:
        more += f',"differs":{json.dumps(view.differs)}'
    body = found.with_number(view.manifest.number, more)
    return Answered(body, etag(body), view.manifest.number, found)


def asked_in(service: Service, query: Mapping[str, str], also: tuple[str, ...] = ()) -> tuple[View, Asked]:
    """The snapshot and the question of a query."""
    asked = question_in(query, also)
    return service.shelf.view(number_of(query.get("snapshot", ""))), asked


def question_in(query: Mapping[str, str], also: tuple[str, ...] = ()) -> Asked:
    """The question of a query, whose other keys are `also`."""
    known = (*KEYS, "snapshot", *also)
    for name in query:
        if name not in known:
            raise UnknownName("parameter", name[:80], known)
    return asked_of({name: value for name, value in query.items() if name in KEYS}, builtin_now(), {})


def number_of(text: str) -> int | None:
    """The number of a snapshot; None if the text is empty."""
    if not text:
        return None
    if not text.isdecimal() or not 0 < int(text) < 2**62:
        raise InputError(
            f"a snapshot is named by its number, got {text[:40]!r}; an answer tells the present one"
        )
    return int(text)


async def answers_in_turns(
    service: Service, view: View, questions: Sequence[str | Mapping[str, Any]], defaults: Mapping[str, str]
) -> list[bytes]:
    """Answers in the order of the questions, as JSON; other requests come between.

    Args:
        service: The server's state.
        view: The snapshot that answers.
        questions: In words or by keys.
        defaults: Values of keys that a question leaves out.
    """
    found: list[bytes] = []
    left = iter(questions)
    catalogue = builtin_now()
    while len(found) < len(questions):
        found += await in_thread(
            service.deep, lambda: list(_one_turn(service, view, left, defaults, catalogue))
        )
    return found


def _one_turn(
    service: Service, view: View, left: Iterator[str | Mapping[str, Any]], defaults: Mapping[str, str],
    catalogue: Catalogue,
) -> Iterator[bytes]:  # fmt: skip
    until_s = time.monotonic() + TURN_S
    for told in left:
        try:
            asked = asked_of(told, catalogue, defaults)
            more, body = service.shelf.retracted(view, asked), view.body(asked)
            body.count()
            yield body.with_number(view.manifest.number, more)
        except TunerError as error:
            yield told_as_json({"refused": error_told(error)}).encode()
        if time.monotonic() > until_s:
            return
