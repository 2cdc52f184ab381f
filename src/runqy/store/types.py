"""Column types that read and write what the original's SQLite and PostgreSQL databases hold."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from sqlalchemy import DateTime, Dialect, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeDecorator, TypeEngine, UserDefinedType

# Go's SQLite drivers write nanoseconds, a zone as +00:00 or "+0000 UTC", or none at all (CURRENT_TIMESTAMP).
_STAMP = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?\s*(?:(Z)|([+-])(\d\d):?(\d\d))?", re.ASCII
)


class _SqliteDatetime(UserDefinedType[str]):
    """``DATETIME`` as a column's type; its values are texts."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "DATETIME"


class UnixTime(TypeDecorator[float]):
    """Unix seconds in Python; timestamptz in PostgreSQL, text in UTC in SQLite."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "sqlite":
            return dialect.type_descriptor(_SqliteDatetime())
        return dialect.type_descriptor(DateTime(timezone=True))

    def process_bind_param(self, value: float | None, dialect: Dialect) -> Any:
        if value is None:
            return None
        moment = datetime.fromtimestamp(value, UTC)
        return moment.isoformat(sep=" ", timespec="microseconds") if dialect.name == "sqlite" else moment

    def process_result_value(self, value: Any, dialect: Dialect) -> float | None:
        if isinstance(value, datetime):
            return (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).timestamp()
        return parse_stamp(value) if isinstance(value, str) else None


def parse_stamp(text: str) -> float | None:
    """Unix seconds of a timestamp as SQLite drivers write it; without a zone it is UTC. None when unreadable."""
    match = _STAMP.match(text)
    if match is None:
        return None
    zone = UTC
    if match[9]:
        offset = timedelta(hours=int(match[10]), minutes=int(match[11]))
        zone = timezone(-offset if match[9] == "-" else offset)
    try:
        year, month, day, hour, minute, second = (int(match[group]) for group in range(1, 7))
        moment = datetime(year, month, day, hour, minute, second, tzinfo=zone)
    except ValueError:
        return None
    return moment.timestamp() + float(f"0.{match[7] or 0}")


class JsonDocument(TypeDecorator[Any]):
    """A JSON value; JSONB in PostgreSQL, text in SQLite. A text that is not JSON is handed out as it is."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(JSONB(none_as_null=True))
        return dialect.type_descriptor(Text())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        if value is None or dialect.name == "postgresql":
            return value
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        if dialect.name == "postgresql" or value is None:
            return value
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        try:
            return json.loads(value, parse_constant=_refuse_constant)
        except ValueError:
            return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
