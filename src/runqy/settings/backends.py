"""Which Redis and which database: one URL, the original's separate variables, or none (embedded)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from runqy.settings import server_variables as names
from runqy.settings.environment import Layer
from runqy.settings.reading import Resolver, Setting
from runqy.settings.redis import DEFAULT_PORT, RedisTarget
from runqy.settings.secret import Secret

_REDIS_PARTS: tuple[Setting[object], ...] = (names.REDIS_HOST, names.REDIS_PORT, names.REDIS_PASSWORD, names.REDIS_TLS)
_DATABASE_PARTS: tuple[Setting[object], ...] = (
    names.DATABASE_HOST,
    names.DATABASE_PORT,
    names.DATABASE_USER,
    names.DATABASE_PASSWORD,
    names.DATABASE_NAME,
    names.DATABASE_SSL,
)
ORIGINAL_SQLITE_PATH = Path("runqy.db")


def choose_redis(resolver: Resolver) -> RedisTarget | None:
    """The Redis that was configured, None for the embedded one.

    A URL wins over ``REDIS_*`` unless these stand in a higher layer (a real variable beats a dotenv file).
    A URL without a password takes ``REDIS_PASSWORD``; ``--redis-tls`` applies to it as well.
    """
    by_url, by_parts = _layer(resolver, names.REDIS_URL), _layer(resolver, *_REDIS_PARTS)
    if max(by_url, by_parts) is Layer.DEFAULT:
        resolver.describe(names.REDIS_URL, None, "default: embedded in the data directory")
        return None
    password = resolver.take(names.REDIS_PASSWORD, None)
    tls = resolver.take(names.REDIS_TLS, None)
    if by_url >= _layer(resolver, names.REDIS_HOST, names.REDIS_PORT) and by_url is not Layer.DEFAULT:
        target = resolver.take(names.REDIS_URL, None)
        if target is None:
            return None
        if not target.password and password is not None:
            target = replace(target, password=password.get_secret_value())
        if tls and target.url.startswith("redis:"):
            target = replace(target, url=target.url.replace("redis:", "rediss:", 1))
        return target
    host = resolver.take(names.REDIS_HOST, "localhost")
    port = resolver.take(names.REDIS_PORT, DEFAULT_PORT)
    shown = f"[{host}]" if ":" in host else host
    secret = password.get_secret_value() if password is not None else ""
    return RedisTarget(f"{'rediss' if tls else 'redis'}://{shown}:{port}", password=secret)


def choose_database(resolver: Resolver) -> Secret | None:
    """The database that was configured as a URL, None for SQLite in the data directory.

    Order: a URL, ``--sqlite`` or ``--sqlite-path``, ``DATABASE_*`` or ``--db-*``, ``SQLITE_DB_PATH``; a higher
    layer beats a lower one.
    """
    by_url = _layer(resolver, names.DATABASE_URL)
    by_parts = _layer(resolver, *_DATABASE_PARTS)
    by_file = _layer(resolver, names.SQLITE_PATH)
    wants_sqlite = resolver.take(names.SQLITE, False)
    highest = max(by_url, by_parts, by_file, Layer.FLAG if wants_sqlite else Layer.DEFAULT)
    if highest is Layer.DEFAULT:
        resolver.describe(names.DATABASE_URL, None, "default: SQLite in the data directory")
        return None
    if by_url is highest:
        return resolver.take(names.DATABASE_URL, None)
    if wants_sqlite or (by_file is highest and (by_file is Layer.FLAG or by_parts is not highest)):
        path = resolver.take(names.SQLITE_PATH, ORIGINAL_SQLITE_PATH)
        return Secret(f"sqlite:///{path.absolute()}")
    return _postgresql(resolver)


def _postgresql(resolver: Resolver) -> Secret:
    host = resolver.take(names.DATABASE_HOST, "localhost")
    port = resolver.take(names.DATABASE_PORT, 5432)
    user = resolver.take(names.DATABASE_USER, "postgres")
    # The original's default name, kept so that an installation of it is found without settings.
    name = resolver.take(names.DATABASE_NAME, "sdxl_queuing_dev")
    ssl = resolver.take(names.DATABASE_SSL, "disable")
    password = resolver.take(names.DATABASE_PASSWORD, None)
    login = quote(user, safe="")
    if password is not None:
        login += ":" + quote(password.get_secret_value(), safe="")
    if host.startswith("/"):
        return Secret(f"postgresql://{login}@:{port}/{quote(name, safe='')}?host={quote(host)}&sslmode={ssl}")
    shown = f"[{host}]" if ":" in host else host
    return Secret(f"postgresql://{login}@{shown}:{port}/{quote(name, safe='')}?sslmode={ssl}")


def _layer(resolver: Resolver, *settings: Setting[object]) -> Layer:
    given = [found.layer for setting in settings if (found := resolver.find(setting)) is not None]
    return max(given, default=Layer.DEFAULT)
