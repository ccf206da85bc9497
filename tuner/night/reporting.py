"""The report of a night: plain data, from which HTML, Markdown and JSON are made, and which may be posted."""

import hashlib
import hmac
import json
import math
import platform
import shlex
import sys
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from tuner.cli.formatting import print_json
from tuner.declare.folders import filled, write_whole
from tuner.errors import InputError, NothingFound
from tuner.night import stored
from tuner.night.changes import ORDER
from tuner.night.watching import NEW, NightWatch
from tuner.night.work import NightItem
from tuner.results.record import utc_now
from tuner.results.sentinel import BEFORE, CHAMPION, LIBRARY
from tuner.results.units import answer_speed, clock, config_text, duration
from tuner.store import Store
from tuner.version import __version__

#: Name in the report -> what a sentinel calls it.
READINGS = {"clock_hz": "sm_clock_hz", "temperature_c": "temperature_c", "power_w": "power_w"}
#: Exit code if a night or a watch has alerts.
ALERTS = 4
#: Header with the signature, as ``sha256=HEX`` of the body.
SIGNATURE = "X-Tuner-Signature"
#: Seconds that one attempt to post may take, and between attempts.
ATTEMPT_S, PAUSES_S = 10.0, (1.0, 5.0, 20.0)


# --- data ----------------------------------------------


def night_report(watch: NightWatch, items: Sequence[NightItem], stopped: str) -> dict[str, Any]:
    """Ends a night: confirms its new champions, and notes its report, from which pages are made now or later.

    Args:
        watch: The night's sentinels.
        items: What its problems came to.
        stopped: Why the night ended early; empty if it did not.
    """
    new = [item for item in items if item.state == "tuned" and item.after and item.after.verdict in NEW]
    watch.confirm_new([item for item in new if not item.item.invariant])
    bad: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for alert in watch.alerts:
        bad[alert["slower"] or alert["cause"] == "wrong"].append(alert)
    report = {
        "form": 2, "night": watch.night, "tuner": __version__, "plan": str(watch.plan.path),
        "watch": watch.alone, "host": platform.node(), "begun_at": watch.begun_at, "ended_at": utc_now(),
        "took_s": time.monotonic() - watch.begun_s, "stopped": stopped,
        "sentinels": [sentinel_json(sentinel) for sentinel in watch.sentinels],
        "no_sentinels": watch.why_none or None, "not_watched": watch.left, "alerts": bad[True],
        "improvements": bad[False], "confirmed": watch.confirmed, "rolled_back": watch.rolled_back,
        "behind": watch.behind,
        "problems": [item.to_json() for item in items],
        "counts": dict(Counter(item.state for item in items)),
    }  # fmt: skip
    stored.note(watch.store, watch.night, stored.ENDED, report)
    return report


def has_alerts(report: Mapping[str, Any]) -> bool:
    """True if somebody should look."""
    return bool(report["alerts"] or report["behind"])


def latest(store: Store, which: str = "LAST") -> dict[str, Any]:
    """The report of an earlier night or watch.

    Args:
        store: The database.
        which: ``LAST`` night, or the beginning of the UTC time at which one began, such as ``2026-11-22``.

    Raises:
        NothingFound: No night ended with a report then.
    """
    reports = [dict(event.data) for event in stored.events(store) if event.event == stored.ENDED]
    fitting = [report for report in reports if report["begun_at"].startswith(which)]
    if which.upper() == "LAST":
        fitting = [report for report in reports if not report.get("watch")]
    if not fitting:
        known = ", ".join(sorted({report["begun_at"][:10] for report in reports})) or "none"
        raise NothingFound(f"a report is of LAST or of a date with a night, got {which}; there are: {known}")
    return fitting[-1]


def last_night(store: Store) -> dict[str, Any]:
    """How the last night that began has ended, if it has.

    Raises:
        NothingFound: None began.
    """
    events = [event for event in stored.events(store) if not event.data.get("watch")]
    begun = next((event for event in reversed(events) if event.event == stored.BEGUN), None)
    if begun is None:
        raise NothingFound("no night has begun with this database; `tuner nightly PLAN` begins one")
    last = {"night": begun.night, "begun_at": begun.at, **begun.data}
    for event in events:
        if (event.event, event.night) == (stored.ENDED, begun.night):
            report = event.data
            last |= {name: report[name] for name in ("ended_at", "stopped", "no_sentinels", "counts")}
            return last | {"alerts": len(report["alerts"]) + len(report["behind"])}
    return last | {"ended_at": None, "stopped": None, "alerts": None}


def sentinel_json(sentinel: stored.Sentinel) -> dict[str, Any]:
    """A sentinel as reports have it."""
    data: dict[str, Any] = {
        "at": sentinel.measured_at, "problem": str(sentinel.problem), "board": sentinel.device.uuid,
        "device": sentinel.device.name, "regime": sentinel.regime, "took_s": sentinel.took_s,
        "others": dict(sentinel.seen), "versions": dict(sentinel.versions),
        "wrong": [player.name for player in sentinel.players if player.wrong],
        **{name: sentinel.circumstance(reading) for name, reading in READINGS.items()},
    }  # fmt: skip
    for player in filter(None, map(sentinel.player, ORDER)):
        data[player.name] = {
            "kernel": player.kernel, "config": dict(player.config), "time_s": player.time_s,
            "binary_hash": player.binary_hash, "compiler": player.compiler,
        }  # fmt: skip
    for other in (BEFORE, LIBRARY):
        shift = sentinel.shift(CHAMPION, other)
        if shift is not None:
            speedup, verdict = math.exp(-shift.log_ratio), shift.verdict()
            data[f"against_{other}"] = {"speedup": speedup, "verdict": verdict}
    return data


def _is_faster(problem: Mapping[str, Any]) -> bool:
    """True if a problem got a faster champion; a first one that is slower than the library is none."""
    first = problem["verdict"] == "first" and (problem["after"]["speedup"] or 1.0) >= 1.0
    return first or problem["verdict"] == "faster"


# --- pages ---------------------------------------------


def write(report: Mapping[str, Any], folder: Path) -> None:
    """Writes ``night-DATE.html``, ``.md`` and ``.json``, replacing those of the same night, and names them.

    Args:
        report: The report, as `night_report` gives it.
        folder: Made if it does not exist.
    """
    name = f"night-{report['begun_at'][:19].replace(':', '')}"
    texts = {
        ".html": rendered("night.html", report=report), ".md": rendered("night.md", report=report),
        ".json": json.dumps(report, indent=1) + "\n",
    }  # fmt: skip
    for ending, text in texts.items():
        write_whole(folder / (name + ending), text.encode())
        click.echo(str(folder / (name + ending)), err=True)


def show_report(report: Any, as_json: bool, template: str = "night.md") -> None:
    """Prints a report: as JSON, as a page for a terminal, or as Markdown for a file."""
    text = "\n".join(line.rstrip() for line in rendered(template, report=report).splitlines())
    if as_json:
        print_json(report)
    elif sys.stdout.isatty():
        import rich.markdown  # a tenth of a night's start, and most nights print to a file

        rich.print(rich.markdown.Markdown(text))
    else:
        click.echo(text)


def rendered(template: str, /, **values: Any) -> str:
    """The text of a template of this package."""
    return filled(Path(__file__).with_name("templates") / template, FILTERS, **values)


def _of_unit(value: object) -> str:
    """A word of a unit's command line (systemd.service(5), "Command lines")."""
    text = str(value).replace("\\", "\\\\").replace("%", "%%").replace("$", "$$")
    if not text or any(letter in text for letter in " \t\"';"):
        return '"' + text.replace('"', '\\"') + '"'
    return text


#: What templates show a value by.
FILTERS: dict[str, Callable[[Any], Any]] = {
    "clock": clock,
    "time": lambda seconds: duration(seconds) if seconds else "-",
    "percent": lambda share: "-" if share is None else f"{share:+.2%}",
    "config": lambda champion: f"{champion['kernel']} {config_text(champion['config'])}" if champion else "-",
    "speed": lambda champion: f"{duration(champion['time_s'])}, {answer_speed(champion)}" if champion else "-",
    "when": lambda at: (at or "-")[:16].replace("T", " "),
    "faster": lambda problems: list(filter(_is_faster, problems)),
    "ratio": lambda value: "-" if value is None else f"{value:.3f} x",
    "shell": lambda value: shlex.quote(str(value)),
    "unit": _of_unit,
}


# --- notices -------------------------------------------


def check_url(url: str) -> None:
    """Checks an address before the night begins.

    Raises:
        InputError: It is no address of HTTP.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"--notify takes an address such as https://host/path, got {url!r}")


def notify(url: str, report: Mapping[str, Any], secret: str = "") -> str:
    """Posts a report as JSON, a few times if need be; it never fails the night.

    Args:
        url: Where to.
        report: What to post.
        secret: Signs the body; nothing is signed if it is empty.

    Returns:
        Why it could not be posted; empty if it was.
    """
    body, why = json.dumps(report).encode(), ""
    headers = {"Content-Type": "application/json", "User-Agent": "tile-tuner"}
    if secret:
        headers[SIGNATURE] = "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")
    for pause_s in (0.0, *PAUSES_S):
        time.sleep(pause_s)
        try:
            with urllib.request.urlopen(request, timeout=ATTEMPT_S):
                return ""
        except (OSError, ValueError) as error:
            why = str(error)
    return f"the report could not be posted to {urllib.parse.urlsplit(url).hostname}: {why}"
