"""The server's settings by name: variables, flags and how each is read."""

from __future__ import annotations

import base64
from pathlib import Path
from urllib.parse import urlsplit

from runqy.settings.reading import Found, Setting, SettingError
from runqy.settings.redis import RedisTarget, parse_redis_url
from runqy.settings.secret import Secret
from runqy.settings.values import api_key, choice, http_url, integer, names, path, secret, text, true_false


def _redis_url(found: Found) -> RedisTarget:
    try:
        return parse_redis_url(secret(found).get_secret_value())
    except ValueError as error:
        # The address may hold a password, so only the reason is shown.
        reason = str(error).removeprefix(f"{found.name} ")
        raise SettingError(f"{found.name}: {reason} (value not shown)") from None


def _database_url(found: Found) -> Secret:
    value = secret(found)
    scheme, separator, rest = found.text.partition("://")
    known = {"postgresql": "postgresql", "postgres": "postgresql", "sqlite": "sqlite"}
    if not separator or scheme not in known or not rest or (scheme == "sqlite" and not rest.startswith("/")):
        raise SettingError(
            f"{found.name} must be postgresql://user:password@host:5432/name or sqlite:///path (value not shown)"
        )
    return value if scheme == known[scheme] else Secret(f"{known[scheme]}://{rest}")


def _host_port(found: Found) -> str:
    host, _, port = text(found).rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise SettingError(f'{found.name} must be host:port such as "redis.example.com:6379", got {found.text!r}')
    return found.text


def _master_key(found: Found) -> Secret:
    try:
        key = base64.b64decode(found.text, validate=True)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise SettingError(
            f"{found.name} must be the standard base64 of 32 bytes (value not shown); "
            "make one with: openssl rand -base64 32"
        )
    return Secret(found.text)


def _repository_url(found: Found) -> str:
    url = text(found)
    try:
        parts = urlsplit(url)
        holds_secret = parts.password is not None or (bool(parts.username) and parts.scheme in {"http", "https"})
    except ValueError:
        raise SettingError(f"{found.name} must be the address of a git repository (value not shown)") from None
    if holds_secret:
        raise SettingError(f"{found.name} must not hold a user or token (value not shown); GITHUB_PAT takes a token")
    return url


_port = integer(1, 65535)
_interval = integer(1, 365 * 24 * 3600, refusal="must be positive")

PORT = Setting("port", _port, ("PORT",), flag="--port")
HOST = Setting("host", text, ("RUNQY_HOST",), flag="--host")
PUBLIC_URL = Setting("public_url", http_url, ("RUNQY_PUBLIC_URL",))

API_KEY = Setting("api_key", api_key, ("RUNQY_API_KEY",), flag="--api-key", secret=True)
WORKER_API_KEY = Setting("worker_api_key", api_key, ("RUNQY_WORKER_API_KEY",), secret=True)
CLIENT_API_KEY = Setting("client_api_key", api_key, ("RUNQY_CLIENT_API_KEY",), secret=True)

REDIS_URL = Setting("redis_url", _redis_url, ("RUNQY_REDIS_URL",), flag="--redis-uri", secret=True)
REDIS_HOST = Setting("redis_host", text, ("REDIS_HOST",))
REDIS_PORT = Setting("redis_port", _port, ("REDIS_PORT",))
REDIS_PASSWORD = Setting("redis_password", secret, ("REDIS_PASSWORD",), secret=True)
REDIS_TLS = Setting("redis_tls", true_false, ("REDIS_TLS",), flag="--redis-tls")
REDIS_ADVERTISE = Setting("redis_advertise", _host_port, ("RUNQY_REDIS_ADVERTISE",))

DATABASE_URL = Setting("database_url", _database_url, ("RUNQY_DATABASE_URL",), flag="--database-url", secret=True)
DATABASE_HOST = Setting("database_host", text, ("DATABASE_HOST",), flag="--db-host")
DATABASE_PORT = Setting("database_port", _port, ("DATABASE_PORT",), flag="--db-port")
DATABASE_USER = Setting("database_user", text, ("DATABASE_USER",), flag="--db-user")
DATABASE_PASSWORD = Setting("database_password", secret, ("DATABASE_PASSWORD",), flag="--db-password", secret=True)
DATABASE_NAME = Setting("database_name", text, ("DATABASE_DBNAME",), flag="--db-name")
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
DATABASE_SSL = Setting("database_ssl", choice(_SSL_MODES), ("DATABASE_SSL",), flag="--db-ssl")
SQLITE = Setting("sqlite", true_false, flag="--sqlite")
SQLITE_PATH = Setting("sqlite_path", path, ("SQLITE_DB_PATH",), flag="--sqlite-path")

DATA_DIR: Setting[Path] = Setting("data_dir", path, ("RUNQY_DATA_DIR",), flag="--data-dir")
DURABILITY = Setting("durability", choice(("everysec", "always")), ("RUNQY_DURABILITY",))

CONFIG_DIR = Setting("config_dir", path, ("QUEUE_WORKERS_DIR",), flag="--config")
CONFIG_REPO_URL = Setting("config_repo_url", _repository_url, ("CONFIG_REPO_URL",), flag="--config-repo")
CONFIG_REPO_BRANCH = Setting("config_repo_branch", text, ("CONFIG_REPO_BRANCH",), flag="--config-branch")
CONFIG_REPO_PATH = Setting("config_repo_path", text, ("CONFIG_REPO_PATH",), flag="--config-path")
CONFIG_CLONE_DIR = Setting("config_clone_dir", path, ("CONFIG_CLONE_DIR",), flag="--clone-dir")
WATCH = Setting("watch", true_false, flag="--watch")
WATCH_INTERVAL = Setting("watch_interval", _interval, ("CONFIG_WATCH_INTERVAL",), flag="--watch-interval")

PUBLIC_RESULTS = Setting("public_results", true_false, ("RUNQY_PUBLIC_RESULTS",))
READ_ONLY = Setting("read_only", true_false, ("ASYNQ_READ_ONLY",))
MAX_BODY_SIZE = Setting("max_body_size", integer(-(2**31), 2**40), ("RUNQY_MAX_BODY_SIZE",))
CORS_ORIGINS = Setting("cors_origins", names, ("RUNQY_CORS_ORIGINS",))
JWT_SECRET = Setting("jwt_secret", secret, ("RUNQY_JWT_SECRET",), secret=True)
VAULT_MASTER_KEY = Setting("vault_master_key", _master_key, ("RUNQY_VAULT_MASTER_KEY",), secret=True)
VAULT_NEW_MASTER_KEY = Setting("vault_new_master_key", _master_key, ("RUNQY_VAULT_NEW_MASTER_KEY",), secret=True)
"""read by ``runqy vault rotate-key`` alone"""
GITHUB_PAT = Setting("github_pat", secret, ("GITHUB_PAT",), secret=True)
WEBHOOK_ALLOW_PRIVATE = Setting("webhook_allow_private", true_false, ("RUNQY_WEBHOOK_ALLOW_PRIVATE",))
PROMETHEUS_ADDRESS = Setting("prometheus_address", text, ("PROMETHEUS_ADDRESS",))
NO_UI = Setting("no_ui", true_false, flag="--no-ui")
DEBUG = Setting("debug", true_false, flag="--debug")

ALL: tuple[Setting[object], ...] = tuple(value for value in list(globals().values()) if isinstance(value, Setting))
FLAG_KEYS = frozenset(setting.flag_key for setting in ALL if setting.flag)
