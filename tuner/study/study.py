"""A study: a budgeted search by trials, then the finals.

The study is the only process that writes the database, and it never touches a device: workers do.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from tuner.devices.machine_load import MachineWatch
from tuner.results.measurement import Measurement
from tuner.results.objectives import Front
from tuner.results.record import Champion, Role
from tuner.study.budget import Interruption, TimeBudget
from tuner.study.finals import Finals
from tuner.study.fronts import found_wrong, front_of
from tuner.study.leaderboard import Leaderboard
from tuner.study.loop import SearchLoop
from tuner.study.progress import Progress, Request, Result
from tuner.study.session import Session


@dataclass
class Study:
    """A study whose devices, spaces and search are open: `search` any number of times, then `finals` once.

    `tuner.study.opening` opens it.

    Attributes:
        request: Its request.
        session: Devices, compile workers and recorders.
        loop: The search.
        leaderboard: Ranks the measured configs.
        budget: Time and progress.
        machine: Watches the machine's load.
        interruption: Handles signals.
        library: The library's measurement before the search; None without a library.
    """

    request: Request
    session: Session
    loop: SearchLoop
    leaderboard: Leaderboard
    budget: TimeBudget
    machine: MachineWatch
    interruption: Interruption
    library: Measurement | None

    @property
    def progress(self) -> Progress:
        """Its progress."""
        return self.budget.progress

    @property
    def objective_value(self) -> float | None:
        """A number that falls as the search progresses; None before anything was measured."""
        return self.leaderboard.objective_value

    def search(self, seconds: float | None = None) -> str:
        """Searches.

        Args:
            seconds: After this time it pauses; None to go on until the search ends.

        Returns:
            Reason why the search ended; empty if it can go on.

        Raises:
            DeviceTrouble: A device stays unwell.
            Interrupted: SIGINT or SIGTERM came.
        """
        self.budget.tick("searching")
        kernels = {kernel.name: kernel for kernel in self.request.kernels}
        with self.interruption.ends(self.loop):
            self.loop.run(kernels, self.request.trials, seconds)
        return self.loop.stop

    def finals(self) -> Result:
        """Plays the finals. Meanwhile the search writes its last trials, unless on a CPU.

        Raises:
            DeviceTrouble: The device does not survive them.
            Interrupted: SIGINT or SIGTERM came.
        """
        self.progress.observe_load(self.machine.told())
        self.budget.tick("finals")
        closing = threading.Thread(target=self.loop.search.close, name="closing")
        if not self.session.shares_cores:
            closing.start()
        finals = Finals(self.session, self.request.kernels, self.machine)
        with self.budget.spent("finals"):
            champion = finals.play(self.leaderboard, self.progress.totals, self.budget.finals_s)
        if self.session.shares_cores:
            closing.start()
        closing.join()
        self.budget.tick("done")
        front = self._front(champion)
        return Result(champion, self.progress, self.loop.stop, finals.pairs, front, finals.unplayed)

    def _front(self, champion: Champion | None) -> Front | None:
        """The Pareto front; None with one objective."""
        if len(self.request.objectives) == 1:
            return None
        recorder, library = self.session.recorder, None
        if self.library is not None:
            library = recorder.of_baseline(self.library).kernel, self.library
        kernels = {kernel.name: kernel for kernel in self.request.kernels}
        wrong = found_wrong(self.session.records(Role.FINAL, kernels))
        return front_of(self.leaderboard, wrong, champion, library, recorder.work)
