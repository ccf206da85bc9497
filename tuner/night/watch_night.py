"""The sentinels of a night on all boards of a model: timed, stored, repeated where suspect, judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tuner.errors import DeviceTrouble
from tuner.night.analysing import Watch, alerts_of
from tuner.night.choosing import Boards
from tuner.night.code import Watched
from tuner.night.confirming import confirm_again, go_back
from tuner.night.detecting import REPEATS
from tuner.night.noise import history_of, last_changes
from tuner.night.timing import CONFIRMING, Pass
from tuner.night.watching import Rules, Watching
from tuner.results.sentinel import Sentinel
from tuner.store import Store, watched


class NightWatch:
    """Times and judges sentinels on boards of one model."""

    def __init__(self, store: Store, boards: Boards, rules: Rules, say: Callable[[str], None]) -> None:
        """Opens nothing yet.

        Args:
            store: Where sentinels, and what was said of nights, are kept.
            boards: The boards.
            rules: How it watches.
            say: Is told what goes on.
        """
        self._store, self._boards, self._rules, self._say = store, boards, rules, say

    def run(self, chosen: Sequence[Watched], night: str) -> Watching:
        """Times all problems on all boards, and judges them.

        Args:
            chosen: The problems.
            night: Id of the night.

        Raises:
            DeviceTrouble: No board can be opened; what one of several cannot is told in `left`.
        """
        found = Watching(night)
        if not chosen:
            found.why_none = "no problem has a champion to watch yet"
            return found
        told = self._boards.timed(dict.fromkeys(self._boards.names, chosen), [self._pass(night, 1)])
        troubles = {name: each for name, each in told.items() if isinstance(each, DeviceTrouble)}
        first = {name: each[0] for name, each in told.items() if not isinstance(each, DeviceTrouble)}
        found.left += [f"{name}: {error}" for name, error in troubles.items()]
        if not first:
            raise next(iter(troubles.values()))
        of_boards = self._judged(first)
        self._repeat(of_boards, chosen, night)
        self._take(found, of_boards)
        return found

    def _pass(self, night: str, process: int) -> Pass:
        return Pass(night, process, self._rules.terms)

    def _judged(self, first: dict[str, list[Sentinel]]) -> dict[str, list[Watch]]:
        """Stores the night's own sentinels of each board, and compares them with the nights before."""
        for timed in first.values():
            watched.add(self._store, timed)
        said = last_changes(self._store)
        return {
            name: [Watch(history_of(self._store, each, said), each, []) for each in timed]
            for name, timed in first.items()
        }

    def _repeat(self, of_boards: dict[str, list[Watch]], chosen: Sequence[Watched], night: str) -> None:
        """Times again, in fresh processes, what is suspect."""
        suspects = {
            name: [(watch, what) for watch, what in zip(watches, chosen, strict=True) if watch.suspect]
            for name, watches in of_boards.items()
        }
        wanted = {name: [what for _, what in found] for name, found in suspects.items() if found}
        for name, problems in wanted.items():
            named = ", ".join(str(what.problem) for what in problems)
            self._say(f"{name}: repeated in fresh processes: {named}")
        passes = [self._pass(night, process) for process in range(2, 2 + REPEATS)]
        for name, told in self._boards.timed(wanted, passes).items() if wanted else ():
            for again in [] if isinstance(told, DeviceTrouble) else told:
                watched.add(self._store, again)
                for (watch, _), each in zip(suspects[name], again, strict=True):
                    watch.again.append(each)

    def _take(self, found: Watching, of_boards: dict[str, list[Watch]]) -> None:
        """Notes what all boards came to; champions that won are confirmed."""
        every = [watch for watches in of_boards.values() for watch in watches]
        found.sentinels = [each.tonight for each in every]
        found.left += [f"{each.tonight.problem}: {each.wrong}" for each in every if each.wrong]
        found.alerts = alerts_of({watches[0].tonight.device.uuid: watches for watches in of_boards.values()})
        found.behind = [each.tonight for each in every if each.again and each.is_behind]
        found.confirmed = confirm_again(self._store, every)
        if self._rules.automatic:
            found.rolled_back = go_back(self._store, every)

    def confirm(self, chosen: Sequence[Watched], night: str) -> list[str]:
        """Has new champions win again in a fresh process on the first board.

        Args:
            chosen: Their problems.
            night: Id of the night.

        Returns:
            The problems whose champion was confirmed, in words.

        Raises:
            DeviceTrouble: The board cannot be used.
        """
        if not chosen:
            return []
        name = self._boards.names[0]
        again = Pass(night, CONFIRMING, self._rules.terms, processes=1)
        told = self._boards.timed({name: chosen}, [again])[name]
        if isinstance(told, DeviceTrouble):
            raise told
        watched.add(self._store, told[0])
        return confirm_again(self._store, [Watch([], each, []) for each in told[0]])
