"""Which Redis or Valkey to use: one value for single server, Sentinel and Cluster, read from a URL."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote, unquote, urlsplit

from runqy.errors import ConfigurationError

Mode = Literal["single", "sentinel", "cluster"]

DEFAULT_PORT = 6379
SENTINEL_PORT = 26379
_SCHEMES: dict[str, tuple[str, Mode]] = {
    "redis": ("redis", "single"),
    "valkey": ("redis", "single"),
    "rediss": ("rediss", "single"),
    "valkeys": ("rediss", "single"),
    "unix": ("unix", "single"),
    "redis+sentinel": ("redis", "sentinel"),
    "rediss+sentinel": ("rediss", "sentinel"),
    "redis+cluster": ("redis", "cluster"),
    "rediss+cluster": ("rediss", "cluster"),
}
FORMS = "redis://host:6379, rediss://host:6379 (TLS), redis+sentinel://host:26379/master, redis+cluster://host:6379"


@dataclass(frozen=True, slots=True)
class RedisTarget:
    """Which Redis or Valkey to use.

    ``url`` is ``redis[s]://[user@]host[:port][/db]`` or ``unix:///path``. ``nodes`` are further ``host:port``
    entries: the Sentinels, or members of the Cluster. ``password`` stands beside the URL so that it is never
    printed with it. Raises `ConfigurationError` for a scheme that is none of these.
    """

    url: str
    mode: Mode = "single"
    nodes: tuple[str, ...] = ()
    master: str = ""
    password: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in {"redis", "rediss", "unix"}:
            raise ConfigurationError(
                "The Redis address can't be used",
                why=f"its scheme is {parts.scheme or 'missing'!r}",
                hint="write redis://host:6379, rediss:// for TLS, or unix:///path/to/socket",
            )
        if parts.password is not None:
            host = parts.netloc.rpartition("@")[2]
            netloc = f"{parts.username}@{host}" if parts.username else host
            object.__setattr__(self, "url", parts._replace(netloc=netloc).geturl())
            if not self.password:
                object.__setattr__(self, "password", unquote(parts.password))

    @property
    def use_tls(self) -> bool:
        """Whether the connection is encrypted (TLS 1.2 at least)."""
        return self.url.startswith("rediss:")

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or "localhost"

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or DEFAULT_PORT

    @property
    def username(self) -> str | None:
        name = urlsplit(self.url).username
        return unquote(name) if name else None

    @property
    def db(self) -> int:
        """Number of the database; 0 unless the URL says otherwise."""
        path = urlsplit(self.url).path.strip("/")
        return int(path) if path.isdigit() and not self.url.startswith("unix:") else 0

    @property
    def address(self) -> str:
        """Where it is, without any secret: for messages and for workers."""
        if self.url.startswith("unix:"):
            return urlsplit(self.url).path
        return f"{self.host}:{self.port}"


def parse_redis_url(text: str) -> RedisTarget:
    """Read a Redis URL as a user writes it.

    Forms: ``redis[s]://[user:password@]host[:port][/db]``, ``unix:///path``,
    ``redis[s]+sentinel://[user:password@]host:26379,host:26379/master[/db]``,
    ``redis[s]+cluster://[user:password@]host:6379,host:6379``. Raises `ValueError` with a text that never
    holds the password.
    """
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in _SCHEMES:
        raise ValueError(f"not a Redis address, use one of {FORMS}")
    base, mode = _SCHEMES[scheme]
    if base == "unix":
        return RedisTarget(f"unix://{rest}")
    authority, _, path = rest.partition("/")
    credentials, at, hosts = authority.rpartition("@")
    user, _, password = credentials.partition(":")
    nodes = tuple(_node(part, SENTINEL_PORT if mode == "sentinel" else DEFAULT_PORT) for part in hosts.split(","))
    if mode == "single" and len(nodes) != 1:
        raise ValueError(f"several hosts need {base}+sentinel:// or {base}+cluster://")
    master, db = _path(mode, path)
    login = f"{quote(unquote(user), safe='')}@" if at and user else ""
    return RedisTarget(
        f"{base}://{login}{nodes[0]}{f'/{db}' if db else ''}",
        mode,
        () if mode == "single" else nodes,
        master,
        unquote(password),
    )


def _node(text: str, default_port: int) -> str:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError("its port is not a number from 1 to 65535, or its host can't be read") from None
    if port == 0 or parts.query or parts.fragment or " " in text:
        raise ValueError("its host or port can't be read")
    shown = f"[{host}]" if host and ":" in host else host or "localhost"
    return f"{shown}:{port or default_port}"


def _path(mode: Mode, path: str) -> tuple[str, int]:
    if "?" in path:
        raise ValueError("options after '?' are not known")
    parts = [part for part in path.split("/") if part]
    master = ""
    if mode == "sentinel":
        if not parts:
            raise ValueError("a Sentinel address ends in the name of its master, such as /mymaster")
        master = unquote(parts.pop(0))
    if not parts:
        return master, 0
    if len(parts) > 1 or not (parts[0].isascii() and parts[0].isdigit()):
        raise ValueError("what follows the host is the number of a database, such as /0")
    if mode == "cluster" and int(parts[0]) != 0:
        raise ValueError("a Cluster has only database 0")
    return master, int(parts[0])
