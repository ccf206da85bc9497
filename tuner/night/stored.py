"""What nights keep beside records: sentinels, and how nights began and ended. Both are only added."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa

from tuner.declare.hardware import DeviceInfo
from tuner.results import codec
from tuner.results.record import Id, ProblemKey, checked_id, new_id, utc_now
from tuner.results.sentinel import CHAMPION, Shift, shift
from tuner.store import Store, rows, tables, watched
from tuner.store.reading import Reader

#: Events of a night.
BEGUN, ENDED = "begun", "ended"


@dataclass(frozen=True)
class Player:
    """One participant of a sentinel.

    Attributes:
        name: One of `PLAYERS`.
        kernel: The kernel, or the library's name.
        config: Its config; empty for the library.
        rounds_s: Its times in seconds, two for each block.
        binary_hash: Hash of its machine code; empty for the library.
        compiler: Compiler of that code.
        source_hash: `tuner.declare.kernel.Kernel.source_hash`.
        wrong: What is wrong with it; empty if it is correct and was timed.
        rms_rel: Its rms error; kept of the library alone.
        bits: Its class of bits; kept of the champion alone.
    """

    name: str
    kernel: str
    config: Mapping[str, Any]
    rounds_s: tuple[float, ...] = ()
    binary_hash: str = ""
    compiler: str = ""
    source_hash: str = ""
    wrong: str = ""
    rms_rel: float | None = None
    bits: str = ""

    @property
    def time_s(self) -> float | None:
        """Median in seconds; None if it was not timed."""
        return statistics.median(self.rounds_s) if self.rounds_s else None


@dataclass(frozen=True)
class Sentinel:
    """One problem's sentinel in one process.

    Attributes:
        problem: The problem.
        device: The board.
        regime: How time was taken.
        night: Id of the night.
        process: 1 for the night's own pass, 2 and on for its repeats, 0 if it confirms a new champion.
        players: The participants that were asked for.
        circumstances: ``sm_clock_hz``, ``temperature_c``, ``power_w``, ``throttle_reasons``: one value for each
            block.
        seen: What other processes did meanwhile; see `tuner.devices.machine_load`.
        versions: Name -> version of driver, compiler, library.
        took_s: Seconds of everything: arrays, checks, rounds.
        id: UUID.
        measured_at: ISO 8601, UTC.
    """

    problem: ProblemKey
    device: DeviceInfo
    regime: str
    night: str
    process: int
    players: tuple[Player, ...]
    circumstances: Mapping[str, Sequence[float]] = field(default_factory=dict)
    seen: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    took_s: float = 0.0
    id: Id = field(default_factory=new_id)
    measured_at: str = field(default_factory=utc_now)

    def player(self, name: str) -> Player | None:
        """The participant of this name; None if there was none, or it was not timed."""
        return next((player for player in self.players if player.name == name and player.rounds_s), None)

    def shift(self, of: str, to: str) -> Shift | None:
        """How much longer one takes than another; None unless both were timed."""
        this, other = self.player(of), self.player(to)
        return shift(this.rounds_s, other.rounds_s) if this and other else None

    def verdict(self, to: str) -> str:
        """How the champion compares with another; empty unless both were timed."""
        shifted = self.shift(CHAMPION, to)
        return shifted.verdict() if shifted else ""

    def circumstance(self, name: str) -> float | None:
        """Median over the blocks; None if it was not read."""
        values = self.circumstances.get(name)
        return statistics.median(values) if values else None


def joined_of(parts: Sequence[Sentinel]) -> Sentinel:
    """One sentinel of the rounds that several processes took; who is wrong in one of them was not timed."""
    first = parts[0]
    players = []
    for player in {own.name: own for part in reversed(parts) for own in part.players}.values():
        same = [own for part in parts for own in part.players if own.name == player.name]
        wrong = next((own.wrong for own in same if own.wrong), "")
        rounds_s = () if wrong else tuple(time_s for own in same for time_s in own.rounds_s)
        players.append(replace(player, rounds_s=rounds_s, wrong=wrong))
    circumstances = {
        name: [value for part in parts for value in part.circumstances.get(name, ())]
        for name in dict.fromkeys(name for part in parts for name in part.circumstances)
    }
    seen = {name: max(part.seen.get(name, 0.0) for part in parts) for part in parts for name in part.seen}
    return replace(
        first, players=tuple(players), circumstances=circumstances, seen=seen,
        took_s=sum(part.took_s for part in parts),
    )  # fmt: skip


def add(store: Store, sentinels: Iterable[Sentinel]) -> int:
    """Stores sentinels in one transaction; those whose id is stored already are left as they are.

    Returns:
        How many are new.

    Raises:
        StoreTrouble: The database cannot be written; nothing of this call is stored.
    """
    new = 0
    with store.writing() as connection:
        for sentinel in sentinels:
            problem, device = rows.problem_row(sentinel.problem), rows.device_row(sentinel.device)
            row = {
                "id": checked_id(sentinel.id), "night": checked_id(sentinel.night),
                "process": sentinel.process, "regime": sentinel.regime, "measured_at": sentinel.measured_at,
                "problem": store.number(connection, tables.problems, problem),
                "device": store.number(connection, tables.devices, device),
                "data": codec.to_json(sentinel),
            }  # fmt: skip
            new += connection.execute(store.insert(tables.sentinels).on_conflict_do_nothing(), row).rowcount
    return new


def sentinels(
    store: Reader, problem: ProblemKey | None = None, regime: str = "", since: str = ""
) -> list[Sentinel]:
    """Stored sentinels in order of time; rows that are damaged are left out.

    Args:
        store: The store to read.
        problem: Of this problem only.
        regime: Of this regime only.
        since: Measured since then; ISO 8601, UTC.
    """
    of = tables.sentinels.c
    named = rows.fits(tables.sentinels, problem=problem, regime=regime)
    wanted = sa.select(of.data).where(of.measured_at >= since, *named)
    stored = store.read(wanted.order_by(of.measured_at, of.id))
    return [codec.from_json(Sentinel, data) for data in stored if data is not None]


def note(store: Store, night: str, event: str, data: Mapping[str, Any]) -> None:
    """Adds an event of a night.

    Args:
        store: The database.
        night: Id of the night.
        event: ``begun`` or ``ended``.
        data: What is known of it: of the end, the whole report.

    Raises:
        StoreTrouble: The database cannot be written.
    """
    row = {"id": new_id(), "night": checked_id(night), "event": event, "data": data, "at": utc_now()}
    with store.writing() as connection:
        connection.execute(tables.nights.insert(), row)


def events(store: Reader, limit: int = 1000) -> list[sa.Row[Any]]:
    """Events of nights as rows of the table, the latest last; those that are damaged are left out.

    Args:
        store: The store to read.
        limit: Of the latest, at most so many.
    """
    of = tables.nights.c
    wanted = sa.select(*of).order_by(of.at.desc(), of.number.desc()).limit(limit)
    return [row for row in reversed(store.rows(wanted)) if row.data is not None]


def savings(store: Reader, device: DeviceInfo) -> dict[ProblemKey, float]:
    """Seconds that programs would have saved with a champion of a problem, as far as counted."""
    return {wanted.problem: wanted.saves_s for wanted in watched.demand(store, device=device.name)}
