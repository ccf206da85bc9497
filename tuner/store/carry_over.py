"""Carries a database of an older schema over to the present one, in place.

Nothing else knows of older schemas: once nobody has such a database, this module can go, with its callers in
`tuner.store.opening` and `tuner.store.health`.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from tuner.results import codec
from tuner.results.crowns import Crown
from tuner.results.record import Champion, ProblemKey, Record, Retraction
from tuner.results.survey import Kept, SurveyPart
from tuner.store import rows, tables

#: Rows read at a time.
AT_ONCE = 500
_PROBLEM = "p.operation, p.shape, p.dtype, p.layout"
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
            for row in _batches(connection, select):
                yield name, row["number"], _READ[name](connection, row)


def _has(connection: sa.Connection, table: str) -> bool:
    return sa.inspect(connection).has_table(table)


def _columns(connection: sa.Connection, table: str) -> set[str]:
    return {column["name"] for column in sa.inspect(connection).get_columns(table)}


def _batches(connection: sa.Connection, select: str) -> Iterator[Any]:
    page, last = sa.text(f"{select} WHERE t.number > :last ORDER BY t.number LIMIT {AT_ONCE}"), 0
    while found := connection.execute(page, {"last": last}).mappings().all():
        yield from found
        last = found[-1]["number"]


def _record(connection: sa.Connection, row: Any) -> Record:
    texts = ("config", "work", "error", "compiled", "stages", "circumstances", "versions", "info")
    data = dict(row) | {name: json.loads(row[name] or "null") for name in texts} | {"id": str(row["id"])}
    measurement = data | {"samples_s": _samples(row["samples"]), "stages_s": data["stages"]}
    more = {"problem": _problem(row), "device": data["info"], "kernel": row["kernel_name"]}
    return codec.from_json(Record, data | more | {"measurement": measurement})


def _samples(packed: bytes) -> list[float]:
    """Times as they were packed: plain, or all first bytes, then all second bytes and so on."""
    plain = packed[1:] if packed[:1] == b"\x00" else zlib.decompress(packed[1:])
    if packed[:1] != b"\x00":
        count = len(plain) // 8
        plain = bytes(plain[place * count + at] for at in range(count) for place in range(8))
    return list(struct.unpack(f"<{len(plain) // 8}d", plain))


def _champion(connection: sa.Connection, row: Any) -> Champion:
    select = sa.text(f"{_SELECT['tuner_records']} WHERE t.number = :number")
    records = {
        name: codec.to_json(
            _record(connection, connection.execute(select, {"number": row[name]}).mappings().one())
        )
        for name in ("record", "baseline")
        if row[name] is not None
    }
    told = {"trials": json.loads(row["trials"]), "pairs": json.loads(row.get("pairs") or "[]")}
    return codec.from_json(Champion, dict(row) | {"id": str(row["id"]), "baseline": None} | records | told)


def _survey(connection: sa.Connection, row: Any) -> SurveyPart:
    columns = json.loads(zlib.decompress(row["data"]))
    shared = {"device": json.loads(row["info"]), "versions": json.loads(row["versions"]), "id": str(row["id"])}
    return SurveyPart.from_json(dict(row) | columns | shared)


def _retraction(connection: sa.Connection, row: Any) -> Retraction:
    return codec.from_json(Retraction, dict(row) | {"id": str(row["id"]), "of": str(row["of"])})


def _crown(connection: sa.Connection, row: Any) -> Crown:
    problem = _problem(row) if row["problem"] is not None else None
    return codec.from_json(Crown, dict(row) | {"id": str(row["id"]), "problem": problem})


def _problem(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in tables.PROBLEM} | {"shape": json.loads(row["shape"])}


_READ: Mapping[str, Callable[[sa.Connection, Any], Kept]] = {
    "tuner_retractions": _retraction, "tuner_records": _record, "tuner_champions": _champion,
    "tuner_surveys": _survey, "tuner_crowns": _crown,
}  # fmt: skip
