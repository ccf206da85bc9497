"""The workers of a night on a cluster, as tables: live on a terminal, and at its end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tuner.cli.formatting import duration

if TYPE_CHECKING:
    from rich.table import Table


def workers_table(told: dict[str, Any]) -> Table:
    """The workers of a night as a table.

    Args:
        told: `tuner.fleet.night.FleetNight.snapshot`.
    """
    from rich.table import Table

    left = "no deadline" if told["left_s"] is None else f"{_clock(told['left_s'])} left"
    title = (
        f"{told['problems_left']} problems to go, {told['slices']} slices, "
        f"{told['trials_per_minute']:.0f} trials a minute, {left}"
    )
    shown = Table(title=title, title_justify="left")
    for name in ("worker", "device", "doing", "trials/min", "slices", "best"):
        shown.add_column(name)
    for each in told["workers"]:
        best = duration(each["best_s"]) if each["best_s"] else "-"
        shown.add_row(
            each["name"], each["device"] or "-", each["doing"], f"{each['trials_per_minute']:.0f}",
            str(each["slices"]), best,
        )  # fmt: skip
    return shown


def _clock(seconds: float) -> str:
    whole = math.ceil(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def workers_rows(told: dict[str, Any]) -> list[tuple[str, ...]]:
    """Rows of the report's table of workers: what each did."""
    elapsed_s = max(told["elapsed_s"], 1e-9)
    return [
        (
            each["name"], each["device"] or "-", each["board"] or "-", str(each["slices"]), str(each["trials"]),
            f"{min(each['busy_s'] / elapsed_s, 1.0):.0%}", each["why"] or each["state"],
        )
        for each in told["workers"]
    ]  # fmt: skip
