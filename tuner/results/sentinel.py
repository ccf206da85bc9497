"""What a sentinel measured: champion, the champion before it and the library, in turns. Plain frozen data."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.results.record import ProblemKey, new_id, utc_now
from tuner.results.sequential import BOUND, Shift, shift

#: Who takes part. ``control`` is the champion a second time, which only recordings of noise have.
CHAMPION, BEFORE, LIBRARY, CONTROL = "champion", "before", "library", "control"
PLAYERS = (CHAMPION, BEFORE, LIBRARY, CONTROL)


@dataclass(frozen=True)
class Terms:
    """How long a sentinel goes on.

    Attributes:
        budget_s: Wall time of its rounds, in seconds.
        bound: Differences below this share are of no interest.
        full: True to use the whole budget, whatever is known before.
    """

    budget_s: float = 1.0
    bound: float = BOUND
    full: bool = False


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
    """

    name: str
    kernel: str
    config: Mapping[str, Any]
    rounds_s: tuple[float, ...] = ()
    binary_hash: str = ""
    compiler: str = ""
    source_hash: str = ""
    wrong: str = ""

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
        bound: Differences below this share are of no interest.
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
    bound: float = BOUND
    circumstances: Mapping[str, Sequence[float]] = field(default_factory=dict)
    seen: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    took_s: float = 0.0
    id: str = field(default_factory=new_id)
    measured_at: str = field(default_factory=utc_now)

    def player(self, name: str) -> Player | None:
        """The participant of this name; None if there was none, or it was not timed."""
        return next((each for each in self.players if each.name == name and each.rounds_s), None)

    def shift(self, of: str, to: str) -> Shift | None:
        """How much longer one takes than another; None unless both were timed."""
        this, other = self.player(of), self.player(to)
        return shift(this.rounds_s, other.rounds_s) if this and other else None

    def verdict(self, to: str) -> str:
        """How the champion compares with another at the bound; empty unless both were timed."""
        found = self.shift(CHAMPION, to)
        return found.verdict(self.bound) if found else ""

    def circumstance(self, name: str) -> float | None:
        """Median over the blocks; None if it was not read."""
        values = self.circumstances.get(name)
        return statistics.median(values) if values else None

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as a JSON object."""
        data = asdict(self)
        data["problem"]["shape"] = self.problem.dims
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Sentinel:
        """Reads what `to_json` wrote."""
        problem = data["problem"]
        key = ProblemKey(
            problem["operation"], tuple(problem["shape"].items()), problem["dtype"], problem["layout"],
            problem["precision"], problem.get("epilogue", ""),
        )  # fmt: skip
        players = tuple(Player(**{**each, "rounds_s": tuple(each["rounds_s"])}) for each in data["players"])
        plain = {name: value for name, value in data.items() if name not in ("problem", "device", "players")}
        return cls(key, DeviceInfo.from_json(data["device"]), players=players, **plain)


def decided(rounds_s: Mapping[str, Sequence[float]], bound: float) -> bool:
    """True if the champion's ratio to each other is known well enough.

    It has a verdict at the bound, and its interval is no wider than the bound, so that nights can be compared.

    Args:
        rounds_s: Name of a participant -> two times for each block.
        bound: Differences below this share are of no interest.
    """
    champion = rounds_s.get(CHAMPION) or next(iter(rounds_s.values()))
    for other in rounds_s.values():
        if other is champion:
            continue
        found = shift(champion, other)
        if found.half_width > bound / 2 or found.verdict(bound) == "unknown":
            return False
    return True


def joined_of(parts: Sequence[Sentinel]) -> Sentinel:
    """One sentinel of the rounds that several processes took; who is wrong in one of them was not timed."""
    first = parts[0]
    players = []
    for player in {each.name: each for part in reversed(parts) for each in part.players}.values():
        same = [each for part in parts for each in part.players if each.name == player.name]
        wrong = next((each.wrong for each in same if each.wrong), "")
        rounds_s = () if wrong else tuple(time_s for each in same for time_s in each.rounds_s)
        players.append(replace(player, rounds_s=rounds_s, wrong=wrong))
    circumstances = {
        name: [value for part in parts for value in part.circumstances.get(name, ())]
        for name in dict.fromkeys(name for part in parts for name in part.circumstances)
    }
    seen = {name: max(part.seen.get(name, 0.0) for part in parts) for part in parts for name in part.seen}
    return replace(
        first, players=tuple(players), circumstances=circumstances, seen=seen,
        took_s=sum(each.took_s for each in parts),
    )  # fmt: skip
