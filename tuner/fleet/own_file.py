"""A worker's own file of records, for where only the coordinator has the database.

Everything that is measured goes into a SQLite file first, so it survives a crash of anything. The coordinator
is handed what it lacks with each answer, and says with the next order what it has stored. If the answer is
lost, the same records are handed over again, which changes nothing: each has a UUID. A champion is not stored
here: only the coordinator knows whether it counts, and hands it back if so.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path

from tuner.fleet.orders import Handed
from tuner.results.record import Champion, Record
from tuner.results.survey import Kept
from tuner.store import Store, lines
from tuner.store.exchange import add_all
from tuner.store.streams import last_number, records_since

#: Records handed over at once.
AT_ONCE = 5000


class OwnFile(Store):
    """A worker's own store, which takes no champion of a study."""

    def crown(self, champions: Champion | Iterable[Champion]) -> int:
        """Stores the records of champions, and leaves the champions to the coordinator."""
        wanted = [champions] if isinstance(champions, Champion) else list(champions)
        of_finals = [each for champion in wanted for each in (champion.record, champion.baseline) if each]
        self.add(of_finals)
        return 0

    def take(self, packed: bytes) -> None:
        """Takes records and champions that the coordinator sends."""
        told = [lines.parsed(line) for line in gzip.decompress(packed).decode().splitlines()]
        champions = [each for each in told if isinstance(each, Champion)]
        add_all(self, (each for each in told if each is not None and not isinstance(each, Champion)))
        if champions:
            super().crown(champions)


class Outbox:
    """What a worker has yet to hand over, in a folder of one board and one database."""

    def __init__(self, folder: Path) -> None:
        """Opens the folder.

        Args:
            folder: Made if it is missing.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.store = OwnFile.open(f"sqlite:///{folder}/records.db")
        self._mark = folder / "stored"

    def close(self) -> None:
        """Ends the connection."""
        self.store.close()

    def handed(self, board: str, since: int | None = None) -> Handed | None:
        """Returns what was measured on a board; None if there is nothing.

        Args:
            board: UUID.
            since: Only what came after this mark; by default all that is not known to be stored.
        """
        fresh = records_since(self.store, self.stored if since is None else since, AT_ONCE)
        mine = [record for _, record in fresh if record.device.uuid == board]
        if not mine:
            return None
        return Handed(packed(mine), fresh[-1][0])

    @property
    def stored(self) -> int:
        """Number of the last record that the coordinator is known to have."""
        try:
            return int(self._mark.read_text())
        except (OSError, ValueError):
            return 0

    def acknowledge(self, mark: int) -> None:
        """Notes what the coordinator has stored; a mark is a number of this file."""
        if self.stored < mark <= last_number(self.store):
            fresh = self._mark.with_suffix(".part")
            fresh.write_text(str(mark))
            fresh.replace(self._mark)

    def keep(self, claim: int, champion: Champion) -> None:
        """Keeps the champion of finals until the coordinator has taken it."""
        fresh = self._folder / f"champion-{claim}.part"
        fresh.write_text(lines.line_of(champion), encoding="utf-8")
        fresh.replace(fresh.with_suffix(".json"))

    def kept(self) -> tuple[tuple[int, str], ...]:
        """Claims and champions, as lines, that no coordinator is known to have taken."""
        found = sorted(self._folder.glob("champion-*.json"))
        return tuple((int(path.stem.partition("-")[2]), path.read_text(encoding="utf-8")) for path in found)

    def forget(self, claims: Iterable[int]) -> None:
        """Drops kept champions: the coordinator has looked at them."""
        for claim in claims:
            (self._folder / f"champion-{claim}.json").unlink(missing_ok=True)


def packed(told: Iterable[Kept]) -> bytes:
    """Gzipped lines."""
    text = "".join(f"{lines.line_of(each)}\n" for each in told)
    return gzip.compress(text.encode(), 3, mtime=0)


def unpacked(content: bytes) -> list[Record]:
    """The records of gzipped lines."""
    told = (lines.parsed(line) for line in gzip.decompress(content).decode().splitlines())
    return [each for each in told if isinstance(each, Record)]
