"""Carries a database of an older schema over to the present one, in place.

Nothing else knows of older schemas: once nobody has such a database, this module can go, with its callers in
`tuner.store.opening` and `tuner.store.health`.
"""

import json
import struct
import zlib
from collections.abc import Iterator
from typing import Any, cast

import sqlalchemy as sa

from tuner.results import codec
from tuner.results.record import ProblemKey
from tuner.results.survey import Kept
from tuner.store import rows, tables

#: Rows read at a time.
AT_ONCE = 500
_PROBLEM = "p.operation, p.shape, p.dtype, p.layout"
#: Columns that are JSON.
_AS_JSON = (
    "config", "work", "error", "compiled", "stages", "circumstances", "versions", "info", "shape", "trials",
    "pairs",
)  # fmt: skip
_SELECT = {
    "tuner_retractions": "SELECT t.* FROM tuner_retractions t",
    "tuner_records": f"""SELECT t.*, {_PROBLEM}, d.info, k.name AS kernel_name, k.source_hash, k.origin,
            u.study, u.session, u.versions
        FROM tuner_records t JOIN tuner_problems p ON p.number = t.problem
            JOIN tuner_devices d ON d.number = t.device JOIN tuner_kernels k ON k.number = t.kernel
            JOIN tuner_runs u ON u.number = t.run""",
    "tuner_champions": "SELECT t.* FROM tuner_champions t",
    "tuner_surveys": """SELECT t.*, d.info, u.study, u.session, u.versions FROM tuner_surveys t
        JOIN tuner_devices d ON d.number = t.device JOIN tuner_runs u ON u.number = t.run""",
    "tuner_crowns": f"""SELECT t.*, {_PROBLEM} FROM tuner_crowns t
        LEFT JOIN tuner_problems p ON p.number = t.problem""",
}


def carry_over(connection: sa.Connection) -> None:
    """Rewrites the tables of an older schema, within the caller's transaction.

    Raises:
        ValueError, LookupError, TypeError: A row is damaged.
    """
    present = {table.name: table for table in rows.TABLES.values() if _has(connection, table.name)}
    kind = "BYTEA" if connection.dialect.name == "postgresql" else "BLOB"
    for name in present:
        if "data" not in _columns(connection, name):
            connection.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN data {kind}")
    for name, number, item in read(connection):
        table = present[name]
        connection.execute(table.update().where(table.c.number == number).values(data=item))
    for name, table in present.items():
        for column in _columns(connection, name) - set(table.c.keys()):
            connection.exec_driver_sql(f"ALTER TABLE {name} DROP COLUMN {column}")
    connection.exec_driver_sql("DROP TABLE IF EXISTS tuner_shared")
    if _has(connection, tables.sentinels.name):
        _carry_sentinels(connection)
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("ALTER TABLE tuner_problems ALTER COLUMN dtype TYPE TEXT")
    tables.METADATA.create_all(connection)
    for table in present.values():
        for index in table.indexes:
            index.create(connection, checkfirst=True)


def _carry_sentinels(connection: sa.Connection) -> None:
    of = tables.sentinels.c
    for number, sentinel in connection.execute(sa.select(of.number, of.data)).all():
        problem = sentinel["problem"]
        key = ProblemKey(**problem | {"shape": tuple(problem["shape"].items())})
        changed = sentinel | {"problem": key.to_json()}
        connection.execute(tables.sentinels.update().where(of.number == number).values(data=changed))


def read(connection: sa.Connection) -> Iterator[tuple[str, int, Kept]]:
    """Yields table, number and content of every row of an older schema."""
    for name, select in _SELECT.items():
        if _has(connection, name):
            page, last = sa.text(f"{select} WHERE t.number > :last ORDER BY t.number LIMIT {AT_ONCE}"), 0
            while batch := connection.execute(page, {"last": last}).mappings().all():
                yield from ((name, row["number"], _item(connection, name, row)) for row in batch)
                last = batch[-1]["number"]


def _has(connection: sa.Connection, table: str) -> bool:
    return sa.inspect(connection).has_table(table)


def _columns(connection: sa.Connection, table: str) -> set[str]:
    return {column["name"] for column in sa.inspect(connection).get_columns(table)}


def _item(connection: sa.Connection, table: str, row: Any) -> Kept:
    """What a row of a table holds, with what it refers to."""
    data = {name: json.loads(value or "null") if name in _AS_JSON else value for name, value in row.items()}
    data |= {name: str(data[name]) for name in ("id", "of") if name in data}
    data["device"] = data.get("info", data.get("device"))
    if "shape" in data and data["problem"] is not None:
        data["problem"] = {name: data[name] for name in tables.PROBLEM}
    if table == tables.records.name:
        measurement = {"samples_s": _samples(data["samples"]), "stages_s": data["stages"]}
        data |= {"kernel": data["kernel_name"], "measurement": data | measurement}
    elif table == tables.champions.name:
        select = sa.text(f"{_SELECT[tables.records.name]} WHERE t.number = :number")
        for name in ("record", "baseline"):
            if data[name] is not None:
                record = connection.execute(select, {"number": data[name]}).mappings().one()
                data[name] = codec.to_json(_item(connection, tables.records.name, record))
        data["pairs"] = data.get("pairs") or []
    elif table == tables.surveys.name:
        data |= json.loads(zlib.decompress(data["data"]))
    _, read = codec.converters(next(kind for kind, of in rows.TABLES.items() if of.name == table))
    return cast(Kept, read(data))


def _samples(packed: bytes) -> list[float]:
    """Times as they were packed: plain, or all first bytes, then all second bytes and so on."""
    plain = packed[1:] if packed[:1] == b"\x00" else zlib.decompress(packed[1:])
    if packed[:1] != b"\x00":
        count = len(plain) // 8
        plain = bytes(plain[place * count + at] for at in range(count) for place in range(8))
    return list(struct.unpack(f"<{len(plain) // 8}d", plain))
