"""Writes the measurements of one run of a study to the store, with their provenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.results.measurement import Measurement
from tuner.results.record import VERIFICATION, VERIFICATION_NAME, Record, Role, new_id
from tuner.store import Store
from tuner.study.boards import library_times, seen_from
from tuner.study.setup import key_of, past_records
from tuner.version import __version__


@dataclass(frozen=True)
class Recorder:
    """Makes the records of one run; holds what they have in common.

    Attributes:
        store: Where records go.
        problem: The problem.
        device: The device.
        regime: How times are taken.
        versions: Name -> version of everything involved on the device.
        study: Name of the study.
        session: Id of this run.
    """

    store: Store
    problem: Problem
    device: DeviceInfo
    regime: str
    versions: Mapping[str, str]
    study: str
    session: str = field(default_factory=new_id)

    @property
    def origin(self) -> str:
        """File of a user's own operation; empty for a built-in one."""
        return str(self.problem.operation.origin or "")

    @property
    def work(self) -> dict[str, float]:
        """``flops`` and ``bytes`` of a run."""
        work = self.problem.work
        return {"flops": work.flops, "bytes": work.bytes}

    def past(self, role: Role) -> list[Record]:
        """Returns stored records of the problem with this driver and compiler, of any kernel.

        Times of trials on other boards of the model are seen from this one.
        """
        key = key_of(self.problem)
        known = past_records(self.store, key, self.device, self.regime, self.versions, role)
        board = self.device.uuid
        if role is not Role.TRIAL or all(each.device.uuid == board for each in known):
            return known
        baselines = self.store.records(problem=key, device=self.device, role=Role.BASELINE)
        library_s = library_times(baselines, self.regime, self.versions.get("library", ""))
        return seen_from(board, known, library_s)

    def of_kernel(self, role: Role, kernel: Kernel, config: Config, measurement: Measurement) -> Record:
        """A record of a kernel's config; it is not stored yet."""
        record = self._record(role, kernel.name, dict(config), kernel.source_hash, measurement)
        fallback = kernel.falls_back_to(config)
        return replace(record, versions={**record.versions, "fallback": fallback}) if fallback else record

    def of_baseline(self, measurement: Measurement) -> Record:
        """Makes a record of the library, with its number of threads, without storing it."""
        name = self.problem.operation.baselines[self.device.kind].named(self.problem)
        record = self._record(Role.BASELINE, name, {}, "", measurement)
        if "threads" not in measurement.circumstances:
            return record
        threads = str(int(measurement.circumstances["threads"]))
        return replace(record, versions={**record.versions, "blas_threads": threads})

    def _record(
        self, role: Role, kernel: str, config: Mapping[str, Any], source_hash: str, measurement: Measurement
    ) -> Record:
        return Record(
            problem=key_of(self.problem), device=self.device, regime=self.regime, role=role, kernel=kernel,
            config=config, source_hash=source_hash, measurement=measurement,
            work=self.work,
            versions={"tuner": __version__, VERIFICATION_NAME: str(VERIFICATION), **self.versions},
            study=self.study, session=self.session, origin=self.origin,
        )  # fmt: skip
