"""Settings of a worker: flags over environment over ``config.yml`` over defaults (product decision 31)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runqy.settings import worker_variables as names
from runqy.settings.environment import Environment, misspelt, read_environment
from runqy.settings.known import KNOWN_VARIABLES
from runqy.settings.levers import read_levers
from runqy.settings.node import Node, Reading
from runqy.settings.reading import Described, Resolver
from runqy.settings.secret import Secret
from runqy.settings.worker_file import read_worker_file
from runqy.tasks.limits import Limits, Source

DEFAULT_FILE = Path("config.yml")
_HINT = "give them in config.yml, or as RUNQY_SERVER_URL, RUNQY_API_KEY (or RUNQY_API_KEY_FILE), RUNQY_QUEUES and so on"


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Everything a worker was told, validated. Durations in seconds."""

    server_url: str
    api_key: Secret
    queues: tuple[str, ...]
    concurrency: int = 1
    shutdown_timeout: float = 30.0
    fallback: Limits = field(default_factory=Limits)
    """for tasks without stamps only (R64)"""
    lease_seconds: float = 30.0
    lease_renew_seconds: float = 10.0
    bootstrap_retries: int | None = None
    """None: for ever, with growing delay; a number: that many tries, ``bootstrap_retry_delay`` apart"""
    bootstrap_retry_delay: float = 5.0
    git_ssh_key: Path | None = None
    git_token: Secret | None = None
    deployment_dir: Path = Path("deployment")
    use_system_site_packages: bool = True
    recovery_enabled: bool = True
    recovery_max_restarts: int = 5
    recovery_initial_delay: float = 1.0
    recovery_max_delay: float = 300.0
    recovery_cooldown: float = 600.0
    recovery_backoff_factor: float = 2.0
    kill_grace: float = 1.0
    warnings: tuple[str, ...] = field(default=(), compare=False)
    described: tuple[Described, ...] = field(default=(), compare=False, repr=False)

    def describe(self) -> tuple[Described, ...]:
        """Each setting with its value (secrets masked) and where it came from."""
        return self.described


def load_worker_settings(
    config_path: Path | None, flags: Mapping[str, object], environ: Mapping[str, str] | None = None
) -> WorkerSettings:
    """Read, validate and freeze. ``config_path`` None means ``config.yml`` here, if there is one.

    A file that does not exist means "environment only", as in the original. Raises `ConfigurationError` that
    lists every problem, those of the file with line and column.
    """
    unknown = sorted(set(flags) - names.FLAG_KEYS)
    if unknown:
        # A slip of the program, not of its user: the command line knows its own flags.
        raise TypeError(f"no worker setting has the flag {', '.join(unknown)}")
    environment = read_environment(os.environ if environ is None else environ)
    reading = Reading()
    file, warnings = _read_file(config_path, environment, reading)
    resolver = Resolver(flags, environment, file)
    resolver.problems.extend(reading.problems)
    resolver.warnings.extend([*warnings, *misspelt(environment, KNOWN_VARIABLES)])
    settings = _build(resolver)
    resolver.finish("The worker's settings are wrong", _HINT)
    return settings


def _read_file(
    config_path: Path | None, environment: Environment, reading: Reading
) -> tuple[dict[str, Node], list[str]]:
    path = config_path or DEFAULT_FILE
    if path.exists():
        return read_worker_file(path, environment.plain(), reading), []
    if config_path is not None:
        return {}, [f"{config_path} does not exist; flags and environment are used alone"]
    return {}, []


def _build(resolver: Resolver) -> WorkerSettings:
    take = resolver.take
    for setting, text in (
        (names.SERVER_URL, "server.url is required"),
        (names.API_KEY, "server.api_key is required"),
        (names.QUEUES, "worker.queues (or worker.queue) is required"),
    ):
        if resolver.find(setting) is None:
            resolver.refuse(text)
    if resolver.find(names.MAX_RETRY_WITHOUT_EFFECT) is not None:
        take(names.MAX_RETRY_WITHOUT_EFFECT, None)
        resolver.warnings.append(
            "retry.max_retry (RUNQY_MAX_RETRY) has no effect: each task carries its own max_retry, "
            "set by RUNQY_DEFAULT_MAX_RETRY on the server or deployment.limits of the queue"
        )
    lease, renew = _leases(resolver)
    return WorkerSettings(
        server_url=take(names.SERVER_URL, ""),
        api_key=take(names.API_KEY, Secret("")),
        queues=take(names.QUEUES, ()),
        concurrency=take(names.CONCURRENCY, 1),
        shutdown_timeout=take(names.SHUTDOWN_TIMEOUT, 30.0),
        fallback=read_levers(resolver, names.FALLBACKS, Source.WORKER),
        lease_seconds=lease,
        lease_renew_seconds=renew,
        bootstrap_retries=take(names.BOOTSTRAP_RETRIES, None),
        bootstrap_retry_delay=take(names.BOOTSTRAP_RETRY_DELAY, 5.0),
        git_ssh_key=take(names.GIT_SSH_KEY, None),
        git_token=take(names.GIT_TOKEN, None),
        deployment_dir=take(names.DEPLOYMENT_DIR, Path("deployment")),
        use_system_site_packages=take(names.USE_SYSTEM_SITE_PACKAGES, True),
        recovery_enabled=take(names.RECOVERY_ENABLED, True),
        recovery_max_restarts=take(names.RECOVERY_MAX_RESTARTS, 5),
        recovery_initial_delay=take(names.RECOVERY_INITIAL_DELAY, 1.0),
        recovery_max_delay=take(names.RECOVERY_MAX_DELAY, 300.0),
        recovery_cooldown=take(names.RECOVERY_COOLDOWN, 600.0),
        recovery_backoff_factor=take(names.RECOVERY_BACKOFF_FACTOR, 2.0),
        kill_grace=take(names.KILL_GRACE, 1.0),
        warnings=tuple(resolver.warnings),
        described=tuple(resolver.described),
    )


def _leases(resolver: Resolver) -> tuple[float, float]:
    lease, renew = resolver.take(names.LEASE, 30.0), resolver.take(names.LEASE_RENEW, None)
    if renew is None:
        return lease, min(10.0, lease / 3)
    if renew * 2 > lease:
        # One lost renewal must not cost the lease.
        resolver.refuse(
            f"{names.LEASE_RENEW.variables[0]} must be at most half of {names.LEASE.variables[0]}, "
            f"got {renew:g} s and {lease:g} s"
        )
    return lease, renew
