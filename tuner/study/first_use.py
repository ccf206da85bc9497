"""A problem at its first use: few configs are compiled, verified and timed, and finals crown the best.

The best predicted are timed first, then those beside the fastest of them that are predicted to be faster yet.

Records and champion are as any study's, so that later studies go on from them.
"""

from __future__ import annotations

from tuner.devices.machine_load import MachineWatch
from tuner.results.error_limit import limit_for
from tuner.results.record import Champion
from tuner.store import Store
from tuner.study.finals import Finals
from tuner.study.first_use_configs import FirstUse, candidates
from tuner.study.first_use_timing import time_in_rounds
from tuner.study.predictions import Predictions
from tuner.study.recorder import Recorder
from tuner.study.session import Conditions, Session
from tuner.study.setup import key_of, study_name
from tuner.workers.crew import Crew


def measure(
    asked: FirstUse, store: Store, crew: Crew, machine: MachineWatch, known: Store | None = None
) -> Champion | None:
    """Tries a problem's most promising configs, and crowns the best of them in finals against the library.

    Args:
        asked: The problem.
        store: Where records go.
        crew: The device's workers, open.
        machine: Sees what else goes on meanwhile.
        known: Has the model and the champions to begin with; `store` has when None.

    Returns:
        The champion, which may be slower than the library; None if no config could be measured.

    Raises:
        InputError: The problem does not fit into memory.
        DeviceTrouble: The device stays unwell.
        StoreTrouble: The database cannot be written.
    """
    worker, problem = crew.devices[0], asked.problem
    info, limit = worker.info, limit_for(problem.precision, None)
    said = Predictions(problem, asked.kernels, info, asked.regime, known or store)
    chosen = candidates(asked, known or store, info, said)
    if not chosen:
        return None
    name = study_name(key_of(problem), info, asked.regime, asked.kernels, error_limit=limit)
    recorder = Recorder(store, problem, info, asked.regime, worker.versions, name)
    conditions = Conditions(asked.regime, error_limit=limit)
    with Session(crew, problem, recorder, conditions) as session:
        timed = time_in_rounds(session, asked, chosen, said)
        if not timed.board.times_s:
            return None
        finals = Finals(session, asked.kernels, machine)
        return finals.play(timed.board, timed.progress.totals, max(asked.seconds - timed.spent_s, 0.0))
