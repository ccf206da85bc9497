"""A client of the service: `tuner.connect`. It needs no package that the core does not need."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import io
import json
import logging
import os
import re
import sqlite3
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from tuner import errors
from tuner.errors import EnvironmentTrouble, InputError, TunerError
from tuner.results.record import utc_now

if TYPE_CHECKING:
    from tuner.declare.problem import Problem
    from tuner.results.record import ProblemKey

#: Variables with the server's address and a token.
SERVER, TOKEN = "TUNER_SERVER", "TUNER_TOKEN"
#: Questions of one request.
AT_ONCE = 1000
#: Seconds between two looks at a job.
FOLLOW_EVERY_S = 1.0
#: Bytes of a response.
MOST_BYTES = 1 << 30
#: Names of exported files.
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")

_LOG = logging.getLogger(__name__)


class ServerAway(EnvironmentTrouble):
    """The server does not answer, and nothing that was kept answers instead."""


@dataclass(frozen=True)
class RemoteAnswer:
    """What a server answered: `tuner.best` over HTTP.

    Attributes:
        kernel: Name of the kernel.
        config: Its config.
        use: ``kernel``, or the library's name where the library is faster.
        match: What the answer rests on.
        expected_loss: Fraction of speed that such answers cost; 0 for ``exact``.
        speedup: Of the kernel over the library; None where that is unknown.
        time_s: Measured seconds; None without a record of this problem.
        stale: True where kernel, compiler or driver have changed since.
        snapshot: Number of the server's snapshot: asking with it repeats the answer.
        from_cache: True if the server was away, and this was its last answer.
        told: The whole answer, as `tuner best --json` prints it.
    """

    kernel: str
    config: Mapping[str, Any]
    use: str
    match: str
    expected_loss: float
    speedup: float | None
    time_s: float | None
    stale: bool | None
    snapshot: int
    from_cache: bool
    told: Mapping[str, Any]

    @classmethod
    def of(cls, told: Mapping[str, Any], from_cache: bool = False) -> RemoteAnswer:
        """The answer of a JSON object."""
        values = {field.name: told[field.name] for field in fields(cls) if field.name in told}
        return cls(**values, from_cache=from_cache, told=told)

    @property
    def age_days(self) -> float | None:
        """Days since the record was measured; None without a record."""
        if not self.told["measured_at"]:
            return None
        measured = datetime.fromisoformat(self.told["measured_at"])
        measured = measured if measured.tzinfo else measured.replace(tzinfo=UTC)
        return round(max(0.0, (datetime.now(UTC) - measured).total_seconds() / 86400), 3)


def connect(url: str = "", token: str = "", *, timeout_s: float = 10.0, cache: Path | None = None) -> Client:
    """A client of a server.

    Args:
        url: Its address, such as ``http://node:8421``; that of ``TUNER_SERVER`` when empty.
        token: A token; that of ``TUNER_TOKEN`` when empty, or none.
        timeout_s: Seconds to wait for an answer.
        cache: Folder where answers are kept; the user's cache when None.

    Raises:
        InputError: No address is given, or it is none.
    """
    url = (url or os.environ.get(SERVER, "")).rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InputError(
            f"a server has an address such as http://node:8421, got {url!r}; give one, or set {SERVER}"
        )
    return Client(url, token or os.environ.get(TOKEN, ""), timeout_s, cache)


class Client:
    """Asks a server. Safe to use from several threads."""

    def __init__(self, url: str, token: str, timeout_s: float, cache: Path | None) -> None:
        self.url, self._token, self._timeout_s, self._folder = url, token, timeout_s, cache

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    # --- answers -------------------------------------------

    def best(
        self, problem: Problem | ProblemKey | str, device: str = "", *, regime: str = "cold",
        kernel: str = "", confirmed: bool = False, snapshot: int | None = None,
    ) -> RemoteAnswer:  # fmt: skip
        """Which kernel and config to use for a problem on a device, or the library.

        If the server is away, its last answer to the same question is repeated, with a warning in the log.

        Args:
            problem: A problem, its key, or words such as ``gemm 4096 4096 4096 float32 nt``.
            device: A name such as ``NVIDIA H200``; the server's own device when empty.
            regime: How time was taken.
            kernel: Only this kernel.
            confirmed: True for champions only that won again in a fresh process, or were published.
            snapshot: Number of a snapshot, to repeat its answer.

        Raises:
            NothingFound: No config is legal, or the snapshot is unknown.
            InputError: The question is wrong.
            ServerAway: The server does not answer, and has not answered this before.
        """
        query = question(problem) | {"device": device, "regime": regime, "kernel": kernel}
        query |= {"confirmed": "true"} if confirmed else {}
        return self._answer(query | ({} if snapshot is None else {"snapshot": f"{snapshot}"}))

    def _answer(self, query: Mapping[str, str]) -> RemoteAnswer:
        """The answer to a question: the server's, or the one that it gave last."""
        key, kept = _query(dict(sorted(query.items()))), dict[str, Any]()
        with contextlib.suppress(KeyError, OSError, ValueError, sqlite3.Error):
            kept = json.loads(self._cache[key])
        try:
            with self._open(f"/v1/best?{key}", headers={"if-none-match": kept.get("etag", "")}) as response:
                if response.status != 304:
                    kept = {"etag": response.headers.get("etag", ""), "at": utc_now()}
                    kept["answer"] = json.loads(response.read(MOST_BYTES))
                    with contextlib.suppress(OSError, sqlite3.Error):
                        self._cache[key] = json.dumps(kept)
        except ServerAway as error:
            if not kept:
                raise
            _LOG.warning("%s; answering from snapshot %s of %s", error, kept["answer"]["snapshot"], kept["at"])
            return RemoteAnswer.of(kept["answer"], from_cache=True)
        return RemoteAnswer.of(kept["answer"])

    @functools.cached_property
    def _cache(self) -> Any:
        """Question -> answer, in the user's cache; in memory where that cannot be written."""
        import diskcache

        from tuner.devices.settings import cache_root

        folder = self._folder or cache_root() / "client"
        try:
            return diskcache.Cache(str(folder / hashlib.sha256(self.url.encode()).hexdigest()[:16]))
        except (OSError, sqlite3.Error):
            return {}

    def best_of_many(
        self, problems: Sequence[Problem | ProblemKey | str], device: str = "", *, regime: str = "cold",
        snapshot: int | None = None,
    ) -> list[RemoteAnswer | TunerError]:  # fmt: skip
        """Answers for many problems, all of one snapshot; an error in the place of one that has none.

        Raises:
            ServerAway: The server does not answer.
        """
        answers: list[RemoteAnswer | TunerError] = []
        for start in range(0, len(problems), AT_ONCE):
            some = [question(problem) for problem in problems[start : start + AT_ONCE]]
            body = {"problems": some, "device": device, "regime": regime, "snapshot": snapshot}
            reply = self._json("/v1/best", body)
            snapshot = reply["snapshot"]
            for answer in reply["answers"]:
                refused = answer.get("refused")
                answers.append(_error_of(refused) if refused else RemoteAnswer.of(answer))
        return answers

    def keep(self, device: str = "", *, operation: str = "") -> int:
        """Keeps the answers to all problems that the server has tuned, for when it is away.

        Args:
            device: Only those tuned on this device.
            operation: Only this operation.

        Returns:
            How many.
        """
        count, after = 0, 0
        names = ("operation", "dtype", "layout", "precision", "epilogue", "device", "regime")
        while after is not None:
            page = self.get("/v1/champions", operation=operation, device=device, limit=500, after=after)
            for row in page["champions"]:
                self._answer(
                    {name: row.get(name, "") for name in names} | {"dims": _dims(row["shape"].items())}
                )
            count, after = count + len(page["champions"]), page["next"]
        return count

    def export(
        self, problem: Problem | ProblemKey | str, device: str = "", *, form: str = "source",
        folder: str | Path = ".", regime: str = "cold",
    ) -> list[Path]:  # fmt: skip
        """Writes the champion into a folder, as ``source``, ``binary``, ``python`` or ``json``.

        Raises:
            NothingFound: The problem is not tuned.
            ServerAway: The server does not answer.
        """
        query = _query(question(problem) | {"device": device, "regime": regime, "format": form})
        with self._open(f"/v1/export?{query}") as response:
            return written(response.read(MOST_BYTES), response.headers, Path(folder))

    # --- jobs ----------------------------------------------

    def submit(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Submits a job; the keys are those of ``POST /v1/jobs``.

        Raises:
            InputError: It is wrong; for a plan, a `PlanError` with line and key.
            ServerAway: The server does not answer.
        """
        return self._json("/v1/jobs", job)

    def job(self, job_id: str) -> dict[str, Any]:
        """State, progress and report of a job."""
        return self._json(_path_of(job_id))

    def cancel(self, job_id: str) -> dict[str, Any]:
        """Cancels a job; what it has measured is kept."""
        return self._json(f"{_path_of(job_id)}/cancel", {})

    def follow(self, job_id: str) -> Iterator[dict[str, Any]]:
        """What happens to a job, until it ends: its states and its progress, looked at each second."""
        last: dict[str, Any] = {"state": "", "progress": None, "ended_at": None}
        while last["ended_at"] is None:
            job = self.job(job_id)
            if job["progress"] != last["progress"]:
                yield {"event": "progress", **job["progress"]}
            if job["state"] != last["state"]:
                yield {"event": "state", "state": job["state"], "why": job["why"]}
            last = job
            time.sleep(0.0 if job["ended_at"] else FOLLOW_EVERY_S)

    # --- records -------------------------------------------

    def send_records(self, path: str | Path) -> dict[str, Any]:
        """Sends a file of `tuner records export`, plain or .zst; it can be sent again without doubling.

        Returns:
            Counts of what is new, what was known, and what was refused, with reasons.
        """
        headers = {"content-type": "application/octet-stream", "content-length": f"{Path(path).stat().st_size}"}
        with Path(path).open("rb") as file, self._open("/v1/records", file, headers, 600.0) as response:
            counts: dict[str, Any] = json.loads(response.read(MOST_BYTES))
            return counts

    def get(self, path: str, **query: str | int) -> dict[str, Any]:
        """Any other GET of the interface: ``client.get("/v1/champions", operation="gemm")``."""
        return self._json(f"{path}?{urlencode(query)}" if query else path)

    # --- HTTP ----------------------------------------------

    def _json(self, path: str, body: Any = None) -> dict[str, Any]:
        """What the server tells as JSON; a body is posted as such."""
        data = None if body is None else json.dumps(body).encode()
        with self._open(path, data, {"content-type": "application/json"}) as response:
            keys: dict[str, Any] = json.loads(response.read(MOST_BYTES))
            return keys

    def _open(
        self, path: str, data: Any = None, headers: Mapping[str, str] = {}, timeout_s: float = 0.0
    ) -> Any:
        """The response to a request, which posts data if there are any; one of status 304 has no body."""
        own = {"authorization": f"Bearer {self._token}"} if self._token else {}
        request = urllib.request.Request(f"{self.url}{path}", data, {**own, **headers})
        try:
            return urllib.request.urlopen(request, timeout=timeout_s or self._timeout_s)
        except urllib.error.HTTPError as error:
            if error.code == 304:
                return error
            raise _error_from(error, self.url) from None
        except (OSError, ValueError) as error:
            raise ServerAway(
                f"the server {self.url} does not answer ({getattr(error, 'reason', None) or error}); check "
                "that it runs, or try again"
            ) from error


def _path_of(job_id: str) -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}"


def question(problem: Problem | ProblemKey | str) -> dict[str, str]:
    """A problem as parameters of a query."""
    if isinstance(problem, str):
        return {"problem": problem}
    operation = problem.operation if isinstance(problem.operation, str) else problem.operation.name
    names = ("dtype", "layout", "precision", "epilogue")
    words = {name: getattr(problem, name) for name in names}
    return {"operation": operation, "dims": _dims(problem.shape), **words}


def _dims(shape: Iterable[tuple[str, int]]) -> str:
    return ",".join(f"{name}={size}" for name, size in shape)


def _query(values: Mapping[str, str]) -> str:
    return urlencode({name: value for name, value in values.items() if value})


def _error_from(error: urllib.error.HTTPError, url: str) -> TunerError:
    """The error that a server told."""
    try:
        told = json.loads(error.read(1 << 20))["error"]
    except (ValueError, KeyError, TypeError, OSError):
        told = {"kind": "", "message": f"the server {url} answered {error.code} {error.reason}"}
    if error.code >= 500 and told["kind"] in ("", "Trouble"):
        return ServerAway(told["message"])
    return _error_of(told)


def _error_of(told: Mapping[str, Any]) -> TunerError:
    """An error of the kind that was told; names are those of `tuner.errors`."""
    kind, message = str(told["kind"]), str(told["message"])
    if kind == "PlanError":
        return errors.PlanError(message, told.get("line", 0), told.get("key", ""))
    plain = (errors.NothingFound, errors.DeviceTrouble, errors.StoreTrouble, EnvironmentTrouble)
    return {known.__name__: known for known in plain}.get(kind, InputError)(message)


def written(data: bytes, headers: Mapping[str, str], folder: Path) -> list[Path]:
    """Checks what was sent against its digest, and writes it.

    Args:
        data: A file, or a zip of several.
        headers: Of the response: ``repr-digest`` and ``content-disposition``.
        folder: Where to write.

    Raises:
        EnvironmentTrouble: What came is not what was sent, or names a place outside of the folder.
        InputError: The folder cannot be written.
    """
    from tuner.export import write_file

    digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
    if (headers.get("repr-digest") or "") != f"sha-256=:{digest}:":
        raise EnvironmentTrouble("the export arrived damaged: its digest is not the one told; fetch it again")
    named = re.search(r'filename="([^"]+)"', headers.get("content-disposition") or "")
    files = {named[1] if named else "": data}
    if named and named[1].endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
    for name in files:
        if not _FILE_NAME.fullmatch(name):
            raise EnvironmentTrouble(f"a file of an export has a plain name, got {name!r}; it is not written")
    return [write_file(folder, name, content) for name, content in files.items()]
