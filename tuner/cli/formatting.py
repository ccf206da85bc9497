"""Tables and JSON for people and programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from tuner.results.record import latest_credible
from tuner.results.units import answer_speed, beside, clock, config_text, duration, energy, speed

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "answer_rows", "clock", "config_text", "duration", "energy", "fields", "grid", "pairs", "print_json",
    "show", "speed", "table", "versus",
]  # fmt: skip


def print_json(data: object) -> None:
    """One line of JSON on stdout."""
    click.echo(json.dumps(data, separators=(", ", ": ")))


def show(
    as_json: bool, data: object, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]
) -> None:
    """JSON for programs, or a table for people, on stdout."""
    if as_json:
        print_json(data)
    else:
        table(title, columns, rows)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], lines: bool = False) -> None:
    """A table on stdout, with lines between its rows if some may be folded."""
    _print(grid(title, columns, rows, show_lines=lines))


def pairs(title: str, rows: Iterable[Sequence[object]]) -> None:
    """A table of names and values on stdout."""
    made = grid(title, ("", ""), rows, show_header=False)
    made.columns[0].style, made.columns[0].no_wrap = "bold", True
    _print(made)


def fields(title: str, data: Mapping[str, Any]) -> None:
    """What JSON has, for people; fields that are empty are left out."""

    def words(value: Any) -> object:
        if isinstance(value, Mapping):
            return "\n".join(f"{name}: {words(of)}" for name, of in value.items())
        if isinstance(value, list):
            return ", ".join(map(str, value))
        return f"{value:.3g}" if isinstance(value, float) else value

    pairs(title, [(name.replace("_", " "), words(of)) for name, of in data.items() if of not in ("", {}, [])])


def grid(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], **style: Any) -> Table:
    """A table to be printed; ``style`` is options of Rich's."""
    from rich.table import Column, Table

    named = (Column(name, overflow="fold") for name in columns)
    made = Table(*named, title=title or None, title_justify="left", header_style="bold", **style)
    for row in rows:
        made.add_row(*map(str, row))
    return made


def _print(made: Table) -> None:
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 120).print(made)


def versus(pair: Mapping[str, Any]) -> tuple[str, str, str]:
    """The other's name and time, and how the first compares with it, from a pair in JSON."""
    interval = f"{pair['low']:.3f} to {pair['high']:.3f}"
    return pair["other"], duration(pair["time_s"]), f"{pair['verdict']}: {pair['ratio']:.3f} x ({interval})"


def limit_text(limit: Mapping[str, Any]) -> str:
    """An error beside the limit that it was measured under."""
    factor = f"{limit['factor']:g} x the library's"
    if limit["says_nothing"]:
        return f"{factor}, which says nothing: {limit['says_nothing']}"
    if limit["ratio"] is None:
        return factor
    return f"{limit['ratio']:.3g} x the library's, rms {limit['library_rms_rel']:.2e}; at most {factor}"


def _speedup_rows(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The speed-up over the library's fastest form, over its default if that is another, and over its best."""
    speedup, hardest = answer["speedup"], answer.get("hardest")
    if speedup is None:
        return []
    intervals = {pair["ratio"]: (pair["low"], pair["high"]) for pair in answer.get("pairs", ())}
    # Where the quotient of the two times is another than the median of the rounds' ratios, rounds disagree.
    known = *intervals.get(speedup, ()), speedup, answer["baseline"]["time_s"] / answer["time_s"]
    told = beside(speedup, min(known), max(known), answer["baseline"]["name"])
    if hardest is not None and hardest["speedup"] < speedup:
        form = beside(hardest["speedup"], *intervals[hardest["speedup"]], hardest["name"])
        told = f"{form} ({told} as it runs by itself)"
    rows, best = [("speed-up", told)], answer.get("library_best")
    if best is not None:
        rows.append(("at its best", beside(best["speedup"], *intervals[best["speedup"]], best["name"])))
    return rows


def answer_rows(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows for people: config, times, errors, doubts and the record of an answer."""
    error, baseline, trials = answer["error"], answer["baseline"], answer["trials"]
    regime = (answer.get("record") or answer)["regime"]
    rows = [
        ("kernel", answer["kernel"]), ("config", config_text(answer["config"])),
        ("device", answer["device"]["name"]),
        ("time", f"{duration(answer['time_s'])} ({regime}, noise {answer['noise']:.2%})"),
        ("speed", answer_speed(answer)),
    ]  # fmt: skip
    if baseline:
        threads = f", threads {baseline['threads']}" if "threads" in baseline else ""
        rows.append(
            (baseline["name"], f"{duration(baseline['time_s'])}{threads}, version {baseline['version']}")
        )
        rows += _speedup_rows(answer)
    if "in_programs" in answer:
        states = answer["in_programs"].items()
        rows.append(
            ("in programs", ", ".join(f"{ratio:.3f} x {name.replace('_', ' ')}" for name, ratio in states))
        )
    if answer.get("use", "kernel") != "kernel":
        rows.append(("use", f"{answer['use']}: no kernel is surely faster here"))
    if error:
        rows.append(("error", f"rms {error['rms_rel']:.2e}, max {error['max_rel']:.2e} (against float64)"))
    if answer.get("bits"):
        theirs = f"; {baseline['name']}'s: {baseline.get('bits') or 'unknown'}" if baseline else ""
        rows.append(("bits", f"class {answer['bits']}{theirs}"))
    if answer.get("rows"):
        rows.append(("rows", f"class {answer['rows']}, whatever their number"))
    if answer.get("error_limit"):
        rows.append(("error limit", limit_text(answer["error_limit"])))
    counts = f"{trials['measured']} measured, {trials.get('PRUNED', 0)} pruned, {trials['failed']} failed"
    rows.append(("trials", f"{trials['total']}: {counts}"))
    rows += [("provisional", f"{reason}; run `tuner tune` again") for reason in answer["provisional_reasons"]]
    rows += [("machine", f"was busy: {what}") for what in answer["busy"]]
    if answer["measured_at"] > latest_credible():
        ahead = "measured in a time to come: a clock stood ahead; `tuner records forget` takes it back"
        rows.append(("note", ahead))
    if answer.get("stale"):
        rows.append(("stale", str(answer["stale_reason"])))
    record = f", record {answer['record_id']}" if answer["record_id"] else ""
    rows.append(("measured", f"{answer['measured_at']}{record}"))
    return rows
