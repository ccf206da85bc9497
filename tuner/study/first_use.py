"""A problem at its first use: few configs are compiled, verified and timed, and finals crown the best.

The best predicted are timed first, then those beside the fastest of them that are predicted to be faster yet.

Records and champion are as any study's, so that later studies go on from them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from tuner.declare.space import Config
from tuner.devices.machine_load import MachineWatch
from tuner.results.error_limit import limit_for
from tuner.results.record import Champion
from tuner.store import Store
from tuner.study.finals import Finals
from tuner.study.first_use_configs import FirstUse, candidates
from tuner.study.first_use_timing import Timed, compile_side_by_side, time_in_order
from tuner.study.predictions import Predictions
from tuner.study.recorder import Recorder
from tuner.study.session import Conditions, Session
from tuner.study.setup import key_of, study_name
from tuner.workers.crew import Crew

#: Rounds after the first one, at the most; none begins later than so many seconds after the first.
ROUNDS, FURTHER_S = 3, 8.0
#: A round that gains less, as a share of the time, is the last.
LEAST_GAIN = 0.002


def measure(asked: FirstUse, store: Store, crew: Crew, machine: MachineWatch) -> Champion | None:
    """Tries a problem's most promising configs, and crowns the best of them in finals against the library.

    Args:
        asked: The problem.
        store: Where records go.
        crew: The device's workers, open.
        machine: Sees what else goes on meanwhile.

    Returns:
        The champion, which may be slower than the library; None if no config could be measured.

    Raises:
        InputError: The problem does not fit into memory.
        DeviceTrouble: The device stays unwell.
        StoreTrouble: The database cannot be written.
    """
    worker, problem = crew.devices[0], asked.problem
    info, limit = worker.info, limit_for(problem.precision, None)
    said = Predictions(problem, asked.kernels, info, asked.regime, store)
    chosen = candidates(asked, store, info, said)
    if not chosen:
        return None
    name = study_name(key_of(problem), info, asked.regime, asked.kernels, error_limit=limit)
    recorder = Recorder(store, problem, info, asked.regime, worker.versions, name)
    conditions = Conditions(asked.regime, error_limit=limit)
    with Session(crew, problem, recorder, conditions) as session:
        timed = _tried(session, asked, chosen, said)
        if not timed.board.times_s:
            return None
        finals = Finals(session, asked.kernels, machine)
        return finals.play(timed.board, timed.progress.totals, max(asked.seconds - timed.spent_s, 0.0))


def _tried(session: Session, asked: FirstUse, chosen: Sequence[tuple[str, Config]], said: Predictions) -> Timed:
    """Times the configs that were chosen, then some rounds of others beside the fastest, while that helps.

    A model keeps a few of the configs that are legal, and has seen fewer at the problems near this one. What
    differs from these in a parameter or two it tells well.
    """
    timed, begun_s = Timed(), time.monotonic()
    for number in range(1 + ROUNDS):
        before_s = timed.board.best_s or math.inf
        compiled = compile_side_by_side(session, asked.kernels, chosen, prepare=not number)
        time_in_order(session, asked, compiled, timed)
        best_s = timed.board.best_s or math.inf
        late = timed.enough(asked) or time.monotonic() - begun_s > FURTHER_S
        if late or not best_s < before_s * (1 - LEAST_GAIN):
            break
        left = dict.fromkeys(timed.tried, math.inf) | timed.board.times_s
        chosen = said.beside(left)
        if not chosen:
            break
    return timed
