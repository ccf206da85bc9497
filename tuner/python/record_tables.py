"""Records as tables: rows of plain values, CSV and Parquet files, data frames of pandas."""

from __future__ import annotations

import contextlib
import csv
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from tuner.errors import EnvironmentTrouble, InputError, UnknownName
from tuner.python.misses import checked
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


class Table(list[Mapping[str, Any]]):
    """Rows of plain values by column: ``dim.m`` for sizes, ``config.BM`` for parameters.

    A column that a row has no value for is missing in it.

    Attributes:
        columns: Names in order, with their kinds.
    """

    columns: Mapping[str, type]

    @classmethod
    def of(cls, records: Sequence[Record]) -> Table:
        """Records as a table, in their order."""
        table = cls(map(row_of, records))
        table.columns = columns_of(records)
        return table

    def to_dataframe(self) -> pandas.DataFrame:
        """The table as a data frame of pandas.

        Raises:
            EnvironmentTrouble: pandas is not installed.
        """
        with _installed("pandas"):
            import pandas
        return pandas.DataFrame(list(self), columns=list(self.columns))

    def __repr__(self) -> str:
        return f"<{len(self)} rows of {len(self.columns)} columns; to_dataframe() makes a data frame of them>"

    def _repr_html_(self) -> str:
        """In a notebook the first rows, if pandas is there."""
        with contextlib.suppress(EnvironmentTrouble):
            return str(self.to_dataframe()._repr_html_())
        return f"<pre>{len(self)} rows of {', '.join(self.columns)}</pre>"


def columns_of(records: Iterable[Record]) -> dict[str, type]:
    """The columns that records have, with the kinds of their values; text if a parameter's are of several."""
    dims: dict[str, type] = {}
    config: dict[str, type] = {}
    for record in records:
        dims |= {f"dim.{name}": type(value) for name, value in record.problem.shape}
        for name, value in record.config.items():
            kind = config.setdefault(f"config.{name}", type(value))
            config[f"config.{name}"] = kind if kind is type(value) else str
    return {name: kind for name, (kind, _) in COLUMNS.items()} | dims | config


def row_of(record: Record) -> dict[str, Any]:
    """A record as a row."""
    row = {name: value(record) for name, (_, value) in COLUMNS.items()}
    row |= {f"dim.{name}": value for name, value in record.problem.shape}
    return row | {f"config.{name}": value for name, value in record.config.items()}


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
        checked(name, "option", RecordOptions.__annotations__)
    wanted = Selection(
        options.get("operation") or "", tuple(options.get("shape") or ()), options.get("device") or "",
        options.get("regime") or "",
    )  # fmt: skip
    role = options.get("role")
    with Store.open(database_url(options.get("db") or ""), read_only=True) as store:
        found = [record for record in stream(store, Record, wanted) if role in (None, "", record.role.value)]
    return Table.of(sorted(found, key=lambda record: (record.measured_at, record.id)))


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
    if format == "parquet" and path is None:
        raise InputError("Parquet goes to a file, got none; name it with -o FILE.parquet")
    columns = columns_of(listing.stream(store, Record, wanted))
    rows = map(row_of, listing.stream(store, Record, wanted))
    batches = iter(lambda: list(itertools.islice(rows, BATCH)), [])
    with contextlib.ExitStack() as stack:
        if format == "parquet":
            assert path is not None, "checked above"
            write = stack.enter_context(_parquet(path, columns))
        else:
            out = stack.enter_context(path.open("w", newline="", encoding="utf-8")) if path else sys.stdout
            writer = csv.DictWriter(out, list(columns), restval="", lineterminator="\n")
            writer.writeheader()
            write = writer.writerows
        count = 0
        for batch in batches:
            write(batch)
            count += len(batch)
    return count


@contextlib.contextmanager
def _parquet(path: Path, columns: Mapping[str, type]) -> Iterator[Callable[[list[dict[str, Any]]], None]]:
    """What writes rows into a file."""
    with _installed("pyarrow"):
        import pyarrow
        from pyarrow import parquet
    kinds = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    schema = pyarrow.schema([(name, kinds[kind]) for name, kind in columns.items()])

    def cast(row: Mapping[str, Any]) -> dict[str, Any]:
        return {name: None if row.get(name) is None else kind(row[name]) for name, kind in columns.items()}

    with parquet.ParquetWriter(path, schema) as writer:
        yield lambda rows: writer.write_table(pyarrow.Table.from_pylist(list(map(cast, rows)), schema=schema))


@contextlib.contextmanager
def _installed(library: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise EnvironmentTrouble(
            f"a table of this kind needs {library}, which cannot be imported ({error}); install it, or "
            "tile-tuner[tables]"
        ) from error
