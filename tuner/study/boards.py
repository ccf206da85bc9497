"""Times of equal boards made comparable: each over the library's time on the board that measured it.

Boards of one model differ by up to 8 % and more (arXiv 2208.11035), which is more than a search's last steps
gain. What a study measured on several boards is therefore seen as if this board had measured it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tuner.results.record import Record

#: Boards of one model do not differ by more; if the library's times do, one of them was disturbed.
MOST_APART = 1.5


def library_times(baselines: Iterable[Record], regime: str, library: str) -> dict[str, float]:
    """Returns board -> the library's median of medians there, in seconds.

    Args:
        baselines: Records of the library for one problem on one model of device.
        regime: How time was taken.
        library: The library's version.
    """
    found: dict[str, list[float]] = {}
    for record in baselines:
        time_s = record.measurement.time_s
        if time_s and record.regime == regime and record.versions.get("library", "") == library:
            found.setdefault(record.device.uuid, []).append(time_s)
    return {board: statistics.median(times_s) for board, times_s in found.items()}


def seen_from(board: str, records: Sequence[Record], library_s: dict[str, float]) -> list[Record]:
    """Returns records with the times that they would have on one board.

    Args:
        board: UUID of the board.
        records: Records of one problem, from any board of the model.
        library_s: The library's time by board. What was measured on a board without one stays as it is.
    """
    ours_s = library_s.get(board)
    return [_seen(each, ours_s, library_s.get(each.device.uuid), board) for each in records]


def _seen(record: Record, ours_s: float | None, theirs_s: float | None, board: str) -> Record:
    if record.device.uuid == board or not ours_s or not theirs_s:
        return record
    factor = ours_s / theirs_s
    if not 1 / MOST_APART < factor < MOST_APART:
        return record
    samples_s = tuple(each * factor for each in record.measurement.samples_s)
    return replace(record, measurement=replace(record.measurement, samples_s=samples_s))
