"""The sentinels of a night on all its boards: timed, stored, repeated where suspect, judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tuner.devices.detect import DetectedDevice
from tuner.errors import DeviceTrouble
from tuner.store import Store, watched
from tuner.watch.analysing import Watch, alerts_of
from tuner.watch.code import Code, Watched
from tuner.watch.confirming import confirm_again, go_back
from tuner.watch.detecting import REPEATS
from tuner.watch.histories import history_of, last_changes
from tuner.watch.timing import CONFIRMING, Pass
from tuner.watch.watching import Rules, Watching


class NightWatch:
    """Times and judges sentinels on boards of one model."""

    def __init__(
        self, store: Store, boards: Sequence[DetectedDevice], rules: Rules, say: Callable[[str], None]
    ) -> None:
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
        of_boards: dict[str, list[Watch]] = {}
        troubles: list[DeviceTrouble] = []
        for board in self._boards:
            try:
                of_boards[board.info.uuid] = self._board(board, chosen, night)
            except DeviceTrouble as error:
                troubles.append(error)
                found.left.append(f"{board.spec}: {error}")
        if not of_boards:
            raise troubles[0]
        every = [watch for watches in of_boards.values() for watch in watches]
        found.sentinels = [each.tonight for each in every]
        found.left += [f"{each.tonight.problem}: {each.wrong}" for each in every if each.wrong]
        found.alerts = alerts_of(of_boards)
        found.behind = [each.tonight for each in every if each.again and each.is_behind]
        found.confirmed = confirm_again(self._store, every)
        if self._rules.automatic:
            found.rolled_back = go_back(self._store, every)
        return found

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
        board = self._boards[0]
        again = Pass(night, CONFIRMING, self._rules.terms, processes=1)
        timed = again.over(board, Code(board.opening), chosen) if chosen else []
        watched.add(self._store, timed)
        return confirm_again(self._store, [Watch([], each, []) for each in timed])

    def _board(self, board: DetectedDevice, chosen: Sequence[Watched], night: str) -> list[Watch]:
        code = Code(board.opening)
        timed = Pass(night, 1, self._rules.terms).over(board, code, chosen)
        watched.add(self._store, timed)
        said = last_changes(self._store)
        watches = [Watch(history_of(self._store, each, said), each, []) for each in timed]
        suspects = [(watch, what) for watch, what in zip(watches, chosen, strict=True) if watch.suspect]
        if suspects:
            names = ", ".join(str(what.problem) for _, what in suspects)
            self._say(f"{board.spec}: repeated in fresh processes: {names}")
        for process in range(2, 2 + REPEATS if suspects else 2):
            again = Pass(night, process, self._rules.terms).over(board, code, [what for _, what in suspects])
            watched.add(self._store, again)
            for (watch, _), each in zip(suspects, again, strict=True):
                watch.again.append(each)
        return watches
