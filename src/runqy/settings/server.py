"""Settings of the server: what it listens on, where it keeps things, who may call, which defaults it stamps."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from runqy.errors import ConfigurationError
from runqy.settings import server_variables as names
from runqy.settings.backends import choose_database, choose_redis
from runqy.settings.environment import misspelt, read_environment
from runqy.settings.known import KNOWN_VARIABLES
from runqy.settings.levers import LEVER_SETTINGS, read_levers
from runqy.settings.reading import Described, Resolver
from runqy.settings.redis import RedisTarget
from runqy.settings.secret import Secret
from runqy.tasks.limits import Limits, Source

DEFAULT_QUEUE_FOLDER = Path("../queueworkers")
DEFAULT_MAX_BODY_BYTES = 52_428_800


@dataclass(frozen=True, slots=True)
class ConfigRepository:
    """A git repository with queue files; ``path`` is the folder in it, ``clone_dir`` where clones go."""

    url: str
    branch: str
    path: str
    clone_dir: Path


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Everything a server was told, validated. Durations in seconds, sizes in bytes."""

    host: str
    port: int
    public_url: str
    api_key: Secret | None
    worker_api_key: Secret | None
    client_api_key: Secret | None
    redis: RedisTarget | None
    """None: a private Valkey below ``data_dir``"""
    redis_advertise: str | None
    """``host:port`` that workers are told instead of the server's own address of Redis"""
    database_url: Secret | None
    """None: SQLite below ``data_dir``; see `effective_database_url`"""
    data_dir: Path
    durability: Literal["everysec", "always"]
    config_dir: Path | None
    config_repository: ConfigRepository | None
    watch: bool
    watch_interval: int
    defaults: Limits
    public_results: bool
    read_only: bool
    max_body_size: int
    cors_origins: tuple[str, ...]
    vault_master_key: Secret | None
    """standard base64 of 32 bytes"""
    jwt_secret: Secret | None
    """None: made at the first start and kept"""
    github_pat: Secret | None
    webhook_allow_private: bool
    """webhooks may go to private, loopback and link-local addresses"""
    prometheus_address: str | None
    no_ui: bool
    debug: bool
    warnings: tuple[str, ...] = field(default=(), compare=False)
    described: tuple[Described, ...] = field(default=(), compare=False, repr=False)

    @property
    def effective_database_url(self) -> Secret:
        """The database to open: the configured one, else SQLite in the data directory."""
        if self.database_url is not None:
            return self.database_url
        return Secret(f"sqlite:///{(self.data_dir / 'runqy.db').absolute()}")

    @property
    def uses_postgresql(self) -> bool:
        return self.effective_database_url.get_secret_value().startswith("postgresql")

    def describe(self) -> tuple[Described, ...]:
        """Each setting with its value (secrets masked) and where it came from."""
        return self.described

    def require_admin_key(self) -> None:
        """Refuse to serve from PostgreSQL without a configured key (product decision 21).

        Several servers may share that database, and each would make a key of its own.
        """
        if self.api_key is None and self.uses_postgresql:
            raise ConfigurationError(
                "No admin key is configured",
                why="with PostgreSQL several servers may run, and each would generate a key of its own",
                hint="set RUNQY_API_KEY, or RUNQY_API_KEY_FILE to a file that holds it",
            )


def load_server_settings(
    flags: Mapping[str, object], environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> ServerSettings:
    """Read, validate and freeze. ``flags`` by name without dashes (``redis_uri``); None or "" is not given.

    Precedence: flags, environment, ``.env.secret`` or ``.env``, defaults. Raises `ConfigurationError` that
    lists every problem.
    """
    _refuse_unknown_flags(flags)
    directory = cwd or Path.cwd()
    environment = read_environment(os.environ if environ is None else environ, directory)
    resolver = Resolver(flags, environment)
    resolver.warnings.extend(misspelt(environment, KNOWN_VARIABLES))
    settings = _build(resolver, directory)
    resolver.finish("The server's settings are wrong", "runqy config show --origin tells where each value comes from")
    return settings


def load_vault_rotation_key(environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> Secret | None:
    """The master key to change to, None when it is not given. Raises `ConfigurationError` when it is no key."""
    environment = read_environment(os.environ if environ is None else environ, cwd or Path.cwd())
    resolver = Resolver({}, environment)
    key = resolver.take(names.VAULT_NEW_MASTER_KEY, None)
    resolver.finish("The new master key is wrong")
    return key


def _build(resolver: Resolver, directory: Path) -> ServerSettings:
    take = resolver.take
    port = take(names.PORT, 3000)
    size = take(names.MAX_BODY_SIZE, DEFAULT_MAX_BODY_BYTES)
    durability = take(names.DURABILITY, "everysec")
    return ServerSettings(
        host=take(names.HOST, "0.0.0.0"),  # noqa: S104 (workers and callers come from other machines)
        port=port,
        public_url=take(names.PUBLIC_URL, f"http://localhost:{port}"),
        api_key=take(names.API_KEY, None),
        worker_api_key=take(names.WORKER_API_KEY, None),
        client_api_key=take(names.CLIENT_API_KEY, None),
        redis=choose_redis(resolver),
        redis_advertise=take(names.REDIS_ADVERTISE, None),
        database_url=choose_database(resolver),
        data_dir=take(names.DATA_DIR, Path(".runqy")),
        durability="always" if durability == "always" else "everysec",
        config_dir=_config_dir(resolver, directory),
        config_repository=_config_repository(resolver),
        watch=take(names.WATCH, False),
        watch_interval=take(names.WATCH_INTERVAL, 60),
        defaults=read_levers(resolver, LEVER_SETTINGS, Source.ENVIRONMENT),
        public_results=take(names.PUBLIC_RESULTS, False),
        read_only=take(names.READ_ONLY, False),
        max_body_size=size if size > 0 else DEFAULT_MAX_BODY_BYTES,
        cors_origins=take(names.CORS_ORIGINS, ()),
        vault_master_key=take(names.VAULT_MASTER_KEY, None),
        jwt_secret=take(names.JWT_SECRET, None),
        github_pat=take(names.GITHUB_PAT, None),
        webhook_allow_private=take(names.WEBHOOK_ALLOW_PRIVATE, False),
        prometheus_address=take(names.PROMETHEUS_ADDRESS, None),
        no_ui=take(names.NO_UI, False),
        debug=take(names.DEBUG, False),
        warnings=tuple(resolver.warnings),
        described=tuple(resolver.described),
    )


def _refuse_unknown_flags(flags: Mapping[str, object]) -> None:
    unknown = sorted(set(flags) - names.FLAG_KEYS)
    if unknown:
        # A slip of the program, not of its user: the command line knows its own flags.
        raise TypeError(f"no server setting has the flag {', '.join(unknown)}")


def _config_dir(resolver: Resolver, directory: Path) -> Path | None:
    given = resolver.take(names.CONFIG_DIR, None)
    if given is not None:
        return given
    default = directory / DEFAULT_QUEUE_FOLDER
    return default if default.is_dir() else None


def _config_repository(resolver: Resolver) -> ConfigRepository | None:
    url = resolver.take(names.CONFIG_REPO_URL, None)
    branch = resolver.take(names.CONFIG_REPO_BRANCH, "main")
    path = resolver.take(names.CONFIG_REPO_PATH, "deployment")
    clone_dir = resolver.take(names.CONFIG_CLONE_DIR, Path("downloads"))
    return None if url is None else ConfigRepository(url, branch, path, clone_dir)
