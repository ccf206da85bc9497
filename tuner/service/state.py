"""What a server holds while it runs: settings, database, snapshots, tokens, jobs, counts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import anyio
from prometheus_client import Counter, Gauge, Histogram, generate_latest

from tuner.devices.detect import find, own_devices
from tuner.errors import InputError, TunerError
from tuner.service import stored_jobs as jobs
from tuner.service.pool import DevicePool
from tuner.service.snapshots import SnapshotCache
from tuner.service.supervisor import JobSupervisor, Watcher
from tuner.service.tokens import LASTS_S, Remembered, Throttle, TokenRegistry
from tuner.store import Store

#: Seconds that a write waits for another process.
PATIENCE_S = 10.0
#: Addresses that only this machine can reach.
LOOPBACK = ("127.0.0.1", "::1", "localhost")
#: Seconds between two looks at database and files.
LOOK_EVERY_S = 0.5
#: Upper limits of the classes of times, seconds.
TIMES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.06, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


@dataclass(frozen=True)
class Settings:
    """How a server runs.

    Attributes:
        db: URL of the database.
        host: Address to bind to.
        port: Port to bind to.
        devices: Specs of the devices that jobs may use; those of this machine if empty.
        local_admin: True to let everyone on this machine do everything while there are no tokens.
        hosts: Names by which clients may call the server, beside the address that it is bound to.
        root_path: Path under which a proxy serves it; empty for none.
        proxied: True to believe a proxy on this machine about the client's address and scheme.
        jobs: False to run no jobs here: they are taken and shown, and wait.
        cluster: What runs the jobs, in place of this machine's devices; empty for those.
        tls: Options with the cluster's certificates; see `tuner.service.pool.DevicePool`.
    """

    db: str
    host: str
    port: int
    devices: tuple[str, ...] = ()
    local_admin: bool = False
    hosts: tuple[str, ...] = ()
    root_path: str = ""
    proxied: bool = False
    jobs: bool = True
    cluster: str = ""
    tls: tuple[str, ...] = ()

    @property
    def host_names(self) -> frozenset[str] | None:
        """The names of Host headers that are answered; None for any.

        A page of a stranger can have its own name point to this machine; its requests then name the stranger.
        """
        if self.host not in LOOPBACK and not self.hosts:
            return None
        own = {"localhost", "127.0.0.1", "[::1]", self.host, f"[{self.host}]"}
        return frozenset(name.casefold() for name in (*own, *self.hosts))

    def check(self, *, has_tokens: bool) -> None:
        """Refuses settings that would let strangers in.

        Raises:
            InputError: An address that others reach, without tokens; or --local-admin with tokens.
        """
        if self.host not in LOOPBACK and not has_tokens:
            raise InputError(
                f"without tokens only this machine is served, got --host {self.host}; make tokens with `tuner "
                "token create NAME`, or leave --host out"
            )
        if self.local_admin and (has_tokens or self.host not in LOOPBACK):
            raise InputError(
                "--local-admin lets everyone on this machine do everything while there are no tokens, and "
                "there are some, or others are served; leave it out, and use a token of scope admin"
            )


# --- figures for Prometheus ----------------------------

REQUESTS = Counter("tuner_requests", "Requests answered.", ("method", "route", "status"))
SECONDS = Histogram("tuner_request_seconds", "Seconds until a request's answer.", ("route",), buckets=TIMES_S)
ANSWERS = Counter("tuner_answers", "Answers of lookups, by what they rest on.", ("match",))
_SNAPSHOT = Gauge("tuner_snapshot", "Number of the present snapshot.")
_ROWS = Gauge("tuner_rows", "Last row of a table in the present snapshot.", ("table",))
_JOBS = Gauge("tuner_jobs", "Jobs, by state.", ("state",))


def metrics_text(store: Store, cache: SnapshotCache) -> bytes:
    """All figures in Prometheus' format."""
    manifest = cache.present.manifest
    _SNAPSHOT.set(manifest.number)
    for table, last in manifest.positions.items():
        _ROWS.labels(table.removeprefix("tuner_")).set(last)
    with contextlib.suppress(TunerError):
        for state, count in jobs.counts(store).items():
            _JOBS.labels(state).set(count)
    return generate_latest()


@dataclass
class Service:
    """What a server holds.

    Attributes:
        settings: How it runs.
        store: The database, for writing.
        cache: Snapshots of it.
        registry: Tokens.
        pool: Devices for jobs.
        supervisor: Runs the jobs; None where it runs none.
        throttle: Addresses that present wrong tokens.
        sessions: Browsers that are logged in: digest of a cookie -> name of the token.
        answering: One thread looks up at a time: several would wait for each other at every step.
        predicting: One question waits for it that takes a model, which is several times as long as by results.
        taking: Records are stored of one stream after the other.
        streams: Event streams that are open.
    """

    settings: Settings
    store: Store
    cache: SnapshotCache
    registry: TokenRegistry
    pool: DevicePool
    supervisor: JobSupervisor | None
    throttle: Throttle = field(default_factory=Throttle)
    sessions: Remembered = field(default_factory=lambda: Remembered(LASTS_S))
    answering: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(1))
    predicting: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(1))
    taking: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(1))
    streams: int = 0

    def wake(self) -> None:
        """Has the queue looked at: a job was submitted or cancelled."""
        if self.supervisor is not None:
            self.supervisor.wake()

    @classmethod
    @contextlib.contextmanager
    def open(cls, settings: Settings) -> Iterator[Service]:
        """Opens the database, and starts the threads that watch it.

        Raises:
            StoreTrouble: The database cannot be used.
            InputError: A device is named wrongly, or the settings would let strangers in.
        """
        devices = tuple(map(find, settings.devices)) or own_devices()
        pool = DevicePool({device.spec: device for device in devices}, settings.cluster, settings.tls)
        with contextlib.ExitStack() as stack:
            store = stack.enter_context(Store.open(settings.db, patience_s=PATIENCE_S))
            registry = TokenRegistry(store, settings.local_admin)
            settings.check(has_tokens=not registry.is_open)
            cache = SnapshotCache(store, settings.db, pool.naming)
            supervisor = JobSupervisor(store, settings.db, pool) if settings.jobs else None
            effect = "the last snapshot and the tokens known go on counting"
            watcher = Watcher(effect, LOOK_EVERY_S, registry.refresh, cache.refresh)
            for loop in filter(None, (supervisor, watcher)):
                loop.start()
                stack.callback(loop.close)
            yield cls(settings, store, cache, registry, pool, supervisor)
