"""The worker's settings by name: keys of ``config.yml``, variables, flags and how each is read."""

from __future__ import annotations

from runqy.errors import UsageError
from runqy.settings.levers import lever_setting
from runqy.settings.queue_name import parse_queue_name
from runqy.settings.reading import Found, Setting, SettingError
from runqy.settings.values import api_key, duration, http_url, integer, names, number, path, secret, switch
from runqy.tasks.limits import ACTIVE_TIMEOUT, PENDING_TIMEOUT, TTL_ARCHIVED, TTL_COMPLETED


def _queues(found: Found) -> tuple[str, ...]:
    queues = names(found)
    if not queues:
        raise SettingError(f"{found.name} contains only empty strings")
    for queue in queues:
        try:
            parse_queue_name(queue)
        except UsageError as error:
            raise SettingError(f"{found.name}: {error}") from None
    return tuple(dict.fromkeys(queues))


_not_negative = "must not be negative"
_nonzero = duration(zero_allowed=False)

SERVER_URL = Setting("server_url", http_url, ("RUNQY_SERVER_URL",), ("server.url",), flag="--server")
API_KEY = Setting("api_key", api_key, ("RUNQY_API_KEY",), ("server.api_key",), flag="--api-key", secret=True)
QUEUES = Setting("queues", _queues, ("RUNQY_QUEUES",), ("worker.queues", "worker.queue"), flag="--queues")
CONCURRENCY = Setting(
    "concurrency",
    integer(1, 10_000, refusal="must be > 0"),
    ("RUNQY_CONCURRENCY",),
    ("worker.concurrency",),
    flag="--concurrency",
)
SHUTDOWN_TIMEOUT = Setting(
    "shutdown_timeout",
    duration(),
    ("RUNQY_SHUTDOWN_TIMEOUT",),
    ("worker.shutdown_timeout",),
    flag="--shutdown-timeout",
)
FALLBACKS = {
    TTL_COMPLETED: lever_setting(
        TTL_COMPLETED,
        ("RUNQY_TTL_COMPLETED", "RUNQY_COMPLETED_TASK_TTL"),
        ("worker.ttl_completed", "worker.completed_task_ttl"),
    ),
    TTL_ARCHIVED: lever_setting(TTL_ARCHIVED, ("RUNQY_TTL_ARCHIVED",), ("worker.ttl_archived",)),
    PENDING_TIMEOUT: lever_setting(PENDING_TIMEOUT, ("RUNQY_PENDING_TIMEOUT",), ("worker.pending_timeout",)),
    ACTIVE_TIMEOUT: lever_setting(ACTIVE_TIMEOUT, ("RUNQY_ACTIVE_TIMEOUT",), ("worker.active_timeout",)),
}
LEASE = Setting("lease_seconds", _nonzero, ("RUNQY_LEASE_DURATION",))
LEASE_RENEW = Setting("lease_renew_seconds", _nonzero, ("RUNQY_LEASE_EXTEND_INTERVAL",))
KILL_GRACE = Setting("kill_grace", duration(), ("RUNQY_KILL_GRACE",))

BOOTSTRAP_RETRIES = Setting(
    "bootstrap_retries",
    integer(0, refusal=_not_negative),
    ("RUNQY_BOOTSTRAP_RETRIES",),
    ("bootstrap.retries",),
)
BOOTSTRAP_RETRY_DELAY = Setting(
    "bootstrap_retry_delay", duration(), ("RUNQY_BOOTSTRAP_RETRY_DELAY",), ("bootstrap.retry_delay",)
)
GIT_SSH_KEY = Setting("git_ssh_key", path, ("RUNQY_GIT_SSH_KEY",), ("git.ssh_key",))
GIT_TOKEN = Setting("git_token", secret, ("RUNQY_GIT_TOKEN",), ("git.token",), secret=True)
DEPLOYMENT_DIR = Setting(
    "deployment_dir", path, ("RUNQY_DEPLOYMENT_DIR",), ("deployment.dir",), flag="--deployment-dir"
)
USE_SYSTEM_SITE_PACKAGES = Setting(
    "use_system_site_packages",
    switch,
    ("RUNQY_USE_SYSTEM_SITE_PACKAGES",),
    ("deployment.use_system_site_packages",),
)
MAX_RETRY_WITHOUT_EFFECT = Setting(
    "max_retry", integer(0, refusal=_not_negative), ("RUNQY_MAX_RETRY",), ("retry.max_retry",)
)
RECOVERY_ENABLED = Setting("recovery_enabled", switch, ("RUNQY_RECOVERY_ENABLED",), ("recovery.enabled",))
RECOVERY_MAX_RESTARTS = Setting(
    "recovery_max_restarts",
    integer(0, refusal=_not_negative),
    ("RUNQY_RECOVERY_MAX_RESTARTS",),
    ("recovery.max_restarts",),
)
RECOVERY_INITIAL_DELAY = Setting(
    "recovery_initial_delay", duration(), ("RUNQY_RECOVERY_INITIAL_DELAY",), ("recovery.initial_delay",)
)
RECOVERY_MAX_DELAY = Setting("recovery_max_delay", duration(), ("RUNQY_RECOVERY_MAX_DELAY",), ("recovery.max_delay",))
RECOVERY_COOLDOWN = Setting(
    "recovery_cooldown", duration(), ("RUNQY_RECOVERY_COOLDOWN",), ("recovery.cooldown_period",)
)
RECOVERY_BACKOFF_FACTOR = Setting("recovery_backoff_factor", number(1.0), (), ("recovery.backoff_factor",))

ALL: tuple[Setting[object], ...] = (
    *(value for value in list(globals().values()) if isinstance(value, Setting)),
    *FALLBACKS.values(),
)
FLAG_KEYS = frozenset(setting.flag_key for setting in ALL if setting.flag)
FILE_KEYS = tuple(key for setting in ALL for key in setting.keys)
"""every dotted path that ``config.yml`` may hold"""
