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
import sqlite3
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urlencode, urlsplit

from tuner import errors
from tuner.errors import EnvironmentTrouble, InputError, TunerError

if TYPE_CHECKING:
    from tuner.declare.problem import Problem
    from tuner.results.record import ProblemKey

#: Variables with the server's address and a token.
SERVER, TOKEN = "TUNER_SERVER", "TUNER_TOKEN"
#: Bytes of a response.
MOST_BYTES = 1 << 30

_LOG = logging.getLogger(__name__)


class ServerAway(EnvironmentTrouble):
    """The server does not answer, and nothing that was kept answers instead."""


class RemoteAnswer(SimpleNamespace):
    """What a server answered: `tuner.best` over HTTP.

    Attributes:
        kernel: Name of the kernel.
        config: Its config.
        use: ``kernel``, or the library's name where the library is faster.
        match: What the answer rests on.
        expected_loss: Fraction of speed that such answers cost; 0 for ``exact``.
        speedup: Of the kernel over the library; None where that is unknown.
        time_s: Measured seconds; None without a record of this problem.
        bits: Class of bits of its results, where that was measured.
        stale: True where kernel, compiler or driver have changed since.
        snapshot: Number of the server's snapshot: asking with it repeats the answer.
        from_cache: True if the server was away, and this was its last answer.
        told: The whole answer, as `tuner best --json` prints it.
    """

    @property
    def age_days(self) -> float | None:
        """Days since the record was measured; None without a record."""
        if not self.measured_at:
            return None
        measured = datetime.fromisoformat(self.measured_at)
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

    # --- answers -------------------------------------------

    def best(
        self, problem: Problem | ProblemKey | str, device: str = "", *, regime: str = "cold",
        kernel: str = "", confirmed: bool = False, invariant: str = "", snapshot: int | None = None,
    ) -> RemoteAnswer:  # fmt: skip
        """Which kernel and config to use for a problem on a device, or the library.

        If the server is away, its last answer to the same question is repeated, with a warning in the log.

        Args:
            problem: A problem, its key, or words such as ``gemm 4096 4096 4096 float32 nt``.
            device: A name such as ``NVIDIA H200``; the server's own device when empty.
            regime: How time was taken.
            kernel: Only this kernel.
            confirmed: True for champions only that won again in a fresh process, or were published.
            invariant: As of `tuner.best`.
            snapshot: Number of a snapshot, to repeat its answer.

        Raises:
            NothingFound: No config is legal, or the snapshot is unknown.
            InputError: The question is wrong.
            ServerAway: The server does not answer, and has not answered this before.
        """
        query = question(problem) | {"device": device, "regime": regime, "kernel": kernel}
        query |= {"confirmed": "true" if confirmed else "", "invariant": invariant}
        return self._answer(query | {"snapshot": "" if snapshot is None else f"{snapshot}"})

    def _answer(self, query: Mapping[str, str]) -> RemoteAnswer:
        """The answer to a question: the server's, or the one that it gave last."""
        key = encoded(dict(sorted(query.items())))
        try:
            answer = self._json(f"/v1/best?{key}")
        except ServerAway as error:
            with contextlib.suppress(KeyError, OSError, sqlite3.Error):
                kept = self._cache[key]
                _LOG.warning("%s; answering from snapshot %s", error, kept["snapshot"])
                return RemoteAnswer(**kept, told=kept, from_cache=True)
            raise
        with contextlib.suppress(OSError, sqlite3.Error):
            self._cache[key] = answer
        return RemoteAnswer(**answer, told=answer, from_cache=False)

    @functools.cached_property
    def _cache(self) -> Any:
        """Question -> answer, in the user's cache."""
        import diskcache

        from tuner.devices.settings import cache_root

        folder = self._folder or cache_root() / "client"
        return diskcache.Cache(str(folder / hashlib.sha256(self.url.encode()).hexdigest()[:16]))

    def best_of_many(
        self, problems: Sequence[Problem | ProblemKey | str], device: str = "", *, regime: str = "cold",
        snapshot: int | None = None,
    ) -> list[RemoteAnswer | TunerError]:  # fmt: skip
        """Answers for up to 1,000 problems, all of one snapshot; an error in the place of one that has none.

        Raises:
            ServerAway: The server does not answer.
        """
        questions = [question(problem) for problem in problems]
        body = {"problems": questions, "device": device, "regime": regime, "snapshot": snapshot}
        answers = self._json("/v1/best", body)["answers"]
        return [
            _error_of(answer["refused"]) if "refused" in answer
            else RemoteAnswer(**answer, told=answer, from_cache=False)
            for answer in answers
        ]  # fmt: skip

    def keep(self, device: str = "", *, operation: str = "") -> int:
        """Keeps the answers to all problems that the server has tuned, for when it is away.

        Args:
            device: Only those tuned on this device.
            operation: Only this operation.

        Returns:
            How many.
        """
        count, after = 0, 0
        while after is not None:
            page = self.get("/v1/champions", operation=operation, device=device, limit=500, after=after)
            for row in page["champions"]:
                self._answer(question_of(row))
            count, after = count + len(page["champions"]), page["next"]
        return count

    def export(
        self, problem: Problem | ProblemKey | str, device: str = "", *, form: str = "source",
        folder: str | Path = ".", regime: str = "cold",
    ) -> list[Path]:  # fmt: skip
        """Writes the champion into a folder, as ``source``, ``binary``, ``python`` or ``json``.

        Raises:
            NothingFound: No config is legal.
            ServerAway: The server does not answer.
            EnvironmentTrouble: What came is not what was sent, or names a place outside of the folder.
            InputError: The folder cannot be written.
        """
        query = encoded(question(problem) | {"device": device, "regime": regime, "format": form})
        with self._open(f"/v1/export?{query}") as response:
            return _written(response.read(MOST_BYTES), response.headers, Path(folder))

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

    # --- records -------------------------------------------

    def send_records(self, path: str | Path) -> dict[str, Any]:
        """Sends a file of `tuner records export`, plain or .zst; it can be sent again without doubling.

        Returns:
            Counts of what is new, what was known, and what was refused, with reasons.
        """
        headers = {"content-type": "application/octet-stream", "content-length": f"{Path(path).stat().st_size}"}
        with Path(path).open("rb") as file, self._open("/v1/records", file, headers, 600.0) as response:
            return cast(dict[str, Any], json.loads(response.read(MOST_BYTES)))

    def get(self, path: str, **query: str | int) -> dict[str, Any]:
        """Any other GET of the interface: ``client.get("/v1/champions", operation="gemm")``."""
        return self._json(f"{path}?{urlencode(query)}" if query else path)

    # --- HTTP ----------------------------------------------

    def _json(self, path: str, body: Any = None) -> dict[str, Any]:
        """What the server tells as JSON; a body is posted as such."""
        data = None if body is None else json.dumps(body).encode()
        with self._open(path, data, {"content-type": "application/json"}) as response:
            return cast(dict[str, Any], json.loads(response.read(MOST_BYTES)))

    def _open(
        self, path: str, data: Any = None, headers: Mapping[str, str] = {}, timeout_s: float = 0.0
    ) -> Any:
        """The response to a request, which posts data if there are any."""
        own = {"authorization": f"Bearer {self._token}"} if self._token else {}
        request = urllib.request.Request(f"{self.url}{path}", data, {**own, **headers})
        try:
            return urllib.request.urlopen(request, timeout=timeout_s or self._timeout_s)
        except urllib.error.HTTPError as error:
            raise _error_from(error, self.url) from None
        except (OSError, ValueError) as error:
            raise ServerAway(
                f"the server {self.url} does not answer ({getattr(error, 'reason', None) or error}); check "
                "that it runs, or try again"
            ) from error


def _written(data: bytes, headers: Mapping[str, str], folder: Path) -> list[Path]:
    """Checks an export against its digest, and writes its file, or those of a zip."""
    from tuner.export import write_file

    digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
    if headers.get("repr-digest") != f"sha-256=:{digest}:":
        raise EnvironmentTrouble("an export has the digest it came with, this has another; fetch it again")
    _, _, name = (headers.get("content-disposition") or "").rstrip('"').partition('filename="')
    files = {name: data}
    if name.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = {inside: archive.read(inside) for inside in archive.namelist()}
    for name in files:
        if name != Path(name).name or name in ("", ".."):
            raise EnvironmentTrouble(f"a file of an export has a plain name, got {name!r}; it is not written")
    return [write_file(folder, name, content) for name, content in files.items()]


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


def question_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The problem, device and regime of a row of a list as parameters of a query."""
    names = ("operation", "dtype", "layout", "precision", "epilogue", "device", "regime")
    return {name: row.get(name, "") for name in names} | {"dims": _dims(row["shape"].items())}


def _dims(shape: Iterable[tuple[str, int]]) -> str:
    return ",".join(f"{name}={size}" for name, size in shape)


def encoded(values: Mapping[str, str]) -> str:
    """Parameters as the query of an address, without empty ones."""
    return urlencode({name: value for name, value in values.items() if value})


def _error_from(error: urllib.error.HTTPError, url: str) -> TunerError:
    """The error that a server detail."""
    try:
        detail = json.loads(error.read(1 << 20))["error"]
    except (ValueError, KeyError, TypeError, OSError):
        detail = {"kind": "", "message": f"the server {url} answered {error.code} {error.reason}"}
    if error.code >= 500 and detail["kind"] in ("", "Trouble"):
        return ServerAway(detail["message"])
    return _error_of(detail)


def _error_of(detail: Mapping[str, Any]) -> TunerError:
    """An error of the kind that was detail; names are those of `tuner.errors`."""
    kind, message = str(detail["kind"]), str(detail["message"])
    if kind == "PlanError":
        return errors.PlanError(message, detail.get("line", 0), detail.get("key", ""))
    plain = (errors.NothingFound, errors.DeviceTrouble, errors.StoreTrouble, EnvironmentTrouble)
    return {known.__name__: known for known in plain}.get(kind, InputError)(message)
