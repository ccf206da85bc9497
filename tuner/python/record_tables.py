"""Records as tables: rows of plain values, CSV and Parquet files, data frames of pandas."""

from __future__ import annotations

import contextlib
import csv
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from tuner.errors import EnvironmentTrouble, InputError, UnknownName
from tuner.results.record import Record
from tuner.study.requests import database_url

if TYPE_CHECKING:
    import pandas

    from tuner.store import Store
    from tuner.store.listing import Selection

#: Formats of a table's file.
FORMATS = ("csv", "parquet")
#: Rows written at once.
BATCH = 5000
#: Column -> its kind and what it holds of a record. Units are in the names.
COLUMNS: Mapping[str, tuple[type, Callable[[Record], Any]]] = {
    "id": (str, lambda r: r.id),
    "measured_at": (str, lambda r: r.measured_at),
    "operation": (str, lambda r: r.problem.operation),
    "dtype": (str, lambda r: r.problem.dtype),
    "layout": (str, lambda r: r.problem.layout),
    "precision": (str, lambda r: r.problem.precision),
    "epilogue": (str, lambda r: r.problem.epilogue),
    "device": (str, lambda r: r.device.name),
    "device_uuid": (str, lambda r: r.device.uuid),
    "regime": (str, lambda r: r.regime),
    "role": (str, lambda r: r.role.value),
    "kernel": (str, lambda r: r.kernel),
    "outcome": (str, lambda r: r.measurement.outcome.value),
    "reason": (str, lambda r: r.measurement.reason),
    "time_s": (float, lambda r: r.measurement.time_s),
    "noise": (float, lambda r: r.measurement.noise),
    "samples": (int, lambda r: len(r.measurement.samples_s)),
    "tflops": (float, lambda r: r.tflops),
    "gbps": (float, lambda r: r.gbps),
    "error_rms": (float, lambda r: r.measurement.error and r.measurement.error.rms_rel),
    "error_max": (float, lambda r: r.measurement.error and r.measurement.error.max_rel),
    "registers": (int, lambda r: r.measurement.compiled and r.measurement.compiled.registers),
    "spill_bytes": (int, lambda r: r.measurement.compiled and r.measurement.compiled.spill_bytes),
    **{
        f"{stage}_s": (float, lambda r, stage=stage: r.measurement.stages_s.get(stage))  # type: ignore[misc]
        for stage in ("compile", "load", "verify", "power")
    },
    "driver": (str, lambda r: r.versions.get("driver", "")),
    "compiler": (str, lambda r: r.versions.get("compiler", "")),
    "library": (str, lambda r: r.versions.get("library", "")),
    "study": (str, lambda r: r.study),
    "session": (str, lambda r: r.session),
    "source_hash": (str, lambda r: r.source_hash),
}


class RecordOptions(TypedDict, total=False):
    """Which records `records` returns; all of a database where nothing is said.

    Attributes:
        operation: Name of the operation.
        shape: Sizes in the operation's order.
        device: Name or uuid.
        regime: How times were taken.
        role: ``trial``, ``final`` or ``baseline``.
        db: URL of the database; by default that of ``TUNER_DB``, else ``studies.db`` in this folder.
    """

    operation: str
    shape: Sequence[int]
    device: str
    regime: str
    role: str
    db: str


@dataclass(frozen=True)
class Table(Sequence[Mapping[str, Any]]):
    """Rows of plain values by column: ``dim.m`` for sizes, ``config.BM`` for parameters.

    Attributes:
        columns: Names in order, with their kinds.
        rows: Values by column; a column that a row has no value for is missing in it.
    """

    columns: Mapping[str, type]
    rows: Sequence[Mapping[str, Any]]

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def to_dataframe(self) -> pandas.DataFrame:
        """The table as a data frame of pandas.

        Raises:
            EnvironmentTrouble: pandas is not installed.
        """
        with _installed("pandas"):
            import pandas
        return pandas.DataFrame(list(self.rows), columns=list(self.columns))

    def __repr__(self) -> str:
        return f"<{len(self)} rows of {len(self.columns)} columns; to_dataframe() makes a data frame of them>"

    def _repr_html_(self) -> str:
        """In a notebook the first rows, if pandas is there."""
        with contextlib.suppress(EnvironmentTrouble):
            return str(self.to_dataframe()._repr_html_())
        return f"<pre>{len(self)} rows of {', '.join(self.columns)}</pre>"


@dataclass
class _Columns:
    """Finds out which columns records have."""

    dims: dict[str, type] = field(default_factory=dict)
    config: dict[str, type] = field(default_factory=dict)

    def see(self, record: Record) -> None:
        for name, value in record.problem.shape:
            self.dims[f"dim.{name}"] = type(value)
        for name, value in record.config.items():
            kind, known = type(value), self.config.get(f"config.{name}")
            self.config[f"config.{name}"] = kind if known in (None, kind) else str

    @property
    def all(self) -> dict[str, type]:
        fixed = {name: kind for name, (kind, _) in COLUMNS.items()}
        return {**fixed, **self.dims, **self.config}


def row_of(record: Record) -> dict[str, Any]:
    """A record as a row."""
    row = {name: value(record) for name, (_, value) in COLUMNS.items()}
    row |= {f"dim.{name}": value for name, value in record.problem.shape}
    return row | {f"config.{name}": value for name, value in record.config.items()}


def table_of(records: Iterable[Record]) -> Table:
    """Records as a table, in their order."""
    columns, rows = _Columns(), []
    for record in records:
        columns.see(record)
        rows.append(row_of(record))
    return Table(columns.all, rows)


def dataframe(records: Iterable[Record]) -> pandas.DataFrame:
    """Records as a data frame of pandas.

    Raises:
        EnvironmentTrouble: pandas is not installed.
    """
    return table_of(records).to_dataframe()


def records(**options: Unpack[RecordOptions]) -> Table:
    """Records of a database as a table, in order of measurement.

    Args:
        options: See `RecordOptions`.

    Raises:
        NothingFound: There is no database.
        UnknownName: There is no such option.
    """
    from tuner.store import Store
    from tuner.store.listing import Selection, stream

    for name in options:
        if name not in RecordOptions.__annotations__:
            raise UnknownName("option", name, RecordOptions.__annotations__)
    wanted = Selection(
        options.get("operation") or "", tuple(options.get("shape") or ()), options.get("device") or "",
        options.get("regime") or "",
    )  # fmt: skip
    role = options.get("role")
    with Store.open(database_url(options.get("db") or ""), read_only=True) as store:
        found = [each for each in stream(store, Record, wanted) if role in (None, "", each.role.value)]
    return table_of(sorted(found, key=lambda each: (each.measured_at, each.id)))


def export_table(store: Store, path: Path | None, format: str, wanted: Selection) -> int:
    """Writes records as a table, ordered by id; retracted ones are left out.

    Args:
        store: The store to read.
        path: The file; None for stdout, CSV only.
        format: One of `FORMATS`.
        wanted: Which records.

    Returns:
        How many rows were written.

    Raises:
        UnknownName: No such format.
        InputError: Parquet for stdout.
        EnvironmentTrouble: pyarrow is not installed.
    """
    from tuner.store import listing

    if format not in FORMATS:
        raise UnknownName("format of a table", format, FORMATS)
    columns = _Columns()
    for record in listing.stream(store, Record, wanted):
        columns.see(record)
    rows = (row_of(record) for record in listing.stream(store, Record, wanted))
    if format == "csv":
        return _write_csv(rows, columns.all, path)
    if path is None:
        raise InputError("Parquet goes to a file, got none; name it with -o FILE.parquet")
    return _write_parquet(rows, columns.all, path)


def _write_csv(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, type], path: Path | None) -> int:
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(path.open("w", newline="", encoding="utf-8")) if path else sys.stdout
        writer = csv.DictWriter(out, list(columns), restval="", lineterminator="\n")
        writer.writeheader()
        count = 0
        for row in rows:
            writer.writerow(row)
            count += 1
    return count


def _write_parquet(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, type], path: Path) -> int:
    with _installed("pyarrow"):
        import pyarrow
        from pyarrow import parquet
    kinds = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    schema = pyarrow.schema([(name, kinds[kind]) for name, kind in columns.items()])
    count = 0
    with parquet.ParquetWriter(path, schema) as writer:
        for batch in _batches(rows):
            cast = [{name: _as(kind, row.get(name)) for name, kind in columns.items()} for row in batch]
            writer.write_table(pyarrow.Table.from_pylist(cast, schema=schema))
            count += len(batch)
    return count


def _as(kind: type, value: Any) -> Any:
    return None if value is None else kind(value)


def _batches(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    rows = iter(rows)
    while batch := list(itertools.islice(rows, BATCH)):
        yield batch


@contextlib.contextmanager
def _installed(library: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise EnvironmentTrouble(
            f"a table of this kind needs {library}, which cannot be imported ({error}); install it, or "
            "tile-tuner[tables]"
        ) from error
