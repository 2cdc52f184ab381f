"""Settings of a worker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from runqy.errors import ConfigurationError
from runqy.settings.secret import Secret
from runqy.settings.worker import WorkerSettings, load_worker_settings
from runqy.settings.worker_file import substitute

NEEDED = {"RUNQY_SERVER_URL": "http://server:3000/", "RUNQY_API_KEY": "key", "RUNQY_QUEUES": "inference.high, echo,"}
FILE = """
server:
  url: https://runqy.example.com
  api_key: ${WORKER_KEY:-file-key}
worker:
  queues: [inference, 1]
  concurrency: 4
  shutdown_timeout: 1m
  ttl_completed: 1h
  completed_task_ttl: 9h
  pending_timeout: 0
bootstrap: {retries: 3, retry_delay: 2s}
git: {ssh_key: ~/.ssh/key, token: 0755}
deployment: {dir: /srv/code, use_system_site_packages: false}
recovery:
  enabled: true
  max_restarts: 2
  initial_delay: 500ms
  max_delay: 1m
  cooldown_period: 5m
  backoff_factor: 1.5
"""


def from_file(tmp_path: Path, text: str, environ: dict[str, str] | None = None, **flags: object) -> WorkerSettings:
    path = tmp_path / "config.yml"
    path.write_text(text)
    return load_worker_settings(path, flags, environ or {})


def problems(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        from_file(tmp_path, text, environ)
    return caught.value.problems


def test_environment_alone_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_worker_settings(None, {}, NEEDED)
    assert settings == WorkerSettings("http://server:3000", Secret("key"), ("inference.high", "echo"))
    assert settings.warnings == ()


def test_defaults_are_the_decided_ones() -> None:
    settings = WorkerSettings("http://h", Secret("k"), ("q",))
    assert (settings.shutdown_timeout, settings.lease_seconds, settings.lease_renew_seconds) == (30, 30, 10)
    assert settings.bootstrap_retries is None
    assert (settings.fallback.ttl_completed, settings.fallback.ttl_archived) == (86400, 259200)
    assert (settings.fallback.pending_timeout, settings.fallback.active_timeout) == (0, 0)
    assert (settings.recovery_max_restarts, settings.recovery_max_delay, settings.recovery_cooldown) == (5, 300, 600)


def test_a_file_gives_everything(tmp_path: Path) -> None:
    settings = from_file(tmp_path, FILE)
    assert settings.server_url == "https://runqy.example.com"
    assert settings.api_key == Secret("file-key")
    assert settings.queues == ("inference", "1")
    assert settings.concurrency == 4
    assert settings.shutdown_timeout == 60
    assert settings.fallback.ttl_completed == 3600
    assert (settings.bootstrap_retries, settings.bootstrap_retry_delay) == (3, 2)
    assert settings.git_ssh_key == Path("~/.ssh/key").expanduser()
    assert settings.git_token == Secret("0755")
    assert (settings.deployment_dir, settings.use_system_site_packages) == (Path("/srv/code"), False)
    assert (settings.recovery_initial_delay, settings.recovery_backoff_factor) == (0.5, 1.5)


def test_flags_win_over_environment_and_environment_over_the_file(tmp_path: Path) -> None:
    """Product decision 31."""
    environ = {"RUNQY_CONCURRENCY": "8", "RUNQY_QUEUES": "other", "RUNQY_TTL_COMPLETED": "5m"}
    settings = from_file(tmp_path, FILE, environ, concurrency=16)
    assert settings.concurrency == 16
    assert settings.queues == ("other",)
    assert settings.fallback.ttl_completed == 300


def test_the_main_name_wins_over_its_alias(tmp_path: Path) -> None:
    """R67."""
    both = {"RUNQY_TTL_COMPLETED": "5m", "RUNQY_COMPLETED_TASK_TTL": "7m"}
    assert load_worker_settings(None, {}, NEEDED | both).fallback.ttl_completed == 300
    alias = {"RUNQY_COMPLETED_TASK_TTL": "7m"}
    assert load_worker_settings(None, {}, NEEDED | alias).fallback.ttl_completed == 420
    assert from_file(tmp_path, FILE.replace("ttl_completed: 1h", "")).fallback.ttl_completed == 9 * 3600
    assert from_file(tmp_path, FILE.replace("queues: [inference, 1]", "queue: single")).queues == ("single",)


def test_what_is_missing_is_named_as_in_the_contract(tmp_path: Path) -> None:
    assert problems(tmp_path, "{}") == (
        "server.url is required",
        "server.api_key is required",
        "worker.queues (or worker.queue) is required",
    )


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("worker: {queues: ['', ' ']}", "config.yml:1:18: worker.queues contains only empty strings"),
        ("worker: {concurrency: 0}", "worker.concurrency must be > 0, got 0"),
        ("worker: {concurrency: many}", 'worker.concurrency must be a whole number such as 1, got "many"'),
        ("worker: {concurrency: 2.5}", "worker.concurrency must be a whole number such as 1, got 2.5"),
        ("worker: {concurrency: true}", "worker.concurrency must be a whole number such as 1, got true"),
        ("worker: {ttl_archived: 24hh}", 'invalid worker.ttl_archived "24hh" (use forms like "24h", "90s", "0")'),
        ("worker: {ttl_archived: 3600}", 'invalid worker.ttl_archived 3600 (use forms like "24h", "90s", "0")'),
        ("worker: {active_timeout: -5s}", 'worker.active_timeout must be >= 0, got "-5s"'),
        ("worker: {shutdown_timeout: soon}", 'worker.shutdown_timeout: invalid duration "soon"'),
        ("worker: {queues: a.b.c}", "invalid queue name 'a.b.c'"),
        ("bootstrap: {retries: -1}", "bootstrap.retries must not be negative, got -1"),
        ("recovery: {initial_delay: 1}", "recovery.initial_delay: invalid duration 1"),
        ("recovery: {backoff_factor: 0.5}", "recovery.backoff_factor must be a number >= 1 such as 2.0, got 0.5"),
        ("recovery: {enabled: yes}", 'recovery.enabled must be true or false, got "yes"'),
        ("worker: {concurency: 3}", "worker: unknown key 'concurency', did you mean 'concurrency'?"),
        ("workers: {concurrency: 3}", "config.yml:1:1: unknown key 'workers', did you mean 'worker'?"),
        ("worker: 3", "worker must be a map of keys and values, got 3"),
        ("worker: {concurrency: 3, concurrency: 4}", "config.yml:1:26: duplicate key 'concurrency', first on line 1"),
        ("worker:\n\tconcurrency: 3", "config.yml:2:1: a tab can't indent here, use spaces"),
    ],
)
def test_a_malformed_file_is_refused_with_its_place(tmp_path: Path, line: str, text: str) -> None:
    """R57, R58, R63."""
    found = problems(tmp_path, line, NEEDED if "queues" not in line else {})
    assert any(text in problem for problem in found), found
    assert any(f"{tmp_path}/config.yml:" in problem for problem in found)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("RUNQY_TTL_COMPLETED", "24hh", 'invalid RUNQY_TTL_COMPLETED "24hh"'),
        ("RUNQY_COMPLETED_TASK_TTL", "1d", 'invalid RUNQY_COMPLETED_TASK_TTL "1d"'),
        ("RUNQY_TTL_ARCHIVED", "3600", 'invalid RUNQY_TTL_ARCHIVED "3600"'),
        ("RUNQY_PENDING_TIMEOUT", "-1s", 'RUNQY_PENDING_TIMEOUT must be >= 0, got "-1s"'),
        ("RUNQY_ACTIVE_TIMEOUT", "off", 'invalid RUNQY_ACTIVE_TIMEOUT "off"'),
        ("RUNQY_LEASE_DURATION", "0", "RUNQY_LEASE_DURATION must be > 0"),
        ("RUNQY_LEASE_EXTEND_INTERVAL", "20s", "RUNQY_LEASE_EXTEND_INTERVAL must be at most half of"),
        ("RUNQY_SHUTDOWN_TIMEOUT", "30", 'RUNQY_SHUTDOWN_TIMEOUT: invalid duration "30"'),
        ("RUNQY_KILL_GRACE", "x", 'RUNQY_KILL_GRACE: invalid duration "x"'),
        ("RUNQY_CONCURRENCY", "4x", 'RUNQY_CONCURRENCY must be a whole number such as 1, got "4x"'),
        ("RUNQY_USE_SYSTEM_SITE_PACKAGES", "maybe", "RUNQY_USE_SYSTEM_SITE_PACKAGES must be true or false"),
        ("RUNQY_SERVER_URL", "server:3000", "RUNQY_SERVER_URL must be a URL"),
    ],
)
def test_a_malformed_variable_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError) as caught:
        load_worker_settings(None, {}, NEEDED | {name: value})
    (problem,) = caught.value.problems
    assert problem.startswith(text)


def test_a_shorter_lease_is_renewed_more_often() -> None:
    settings = load_worker_settings(None, {}, NEEDED | {"RUNQY_LEASE_DURATION": "3s"})
    assert (settings.lease_seconds, settings.lease_renew_seconds) == (3, 1)


def test_a_named_file_that_does_not_exist_means_environment_alone(tmp_path: Path) -> None:
    settings = load_worker_settings(tmp_path / "nope.yml", {}, NEEDED)
    assert settings.queues == ("inference.high", "echo")
    assert "does not exist" in settings.warnings[0]


def test_max_retry_is_accepted_without_effect(tmp_path: Path) -> None:
    settings = from_file(tmp_path, "retry: {max_retry: 25}", NEEDED)
    assert "has no effect" in settings.warnings[0]


@pytest.mark.parametrize(
    ("text", "replaced"),
    [
        ("a: ${X}", "a: x"),
        ("a: ${EMPTY}", "a: "),
        ("a: ${EMPTY:-d e}", "a: d e"),
        ("a: ${UNSET:-}", "a: "),
        ("${X}${X:-y}", "xx"),
        ("a: $X ${A B} ${}", "a: $X ${A B} ${}"),
        ("a: ${UNSET:-http://h:1}", "a: http://h:1"),
    ],
)
def test_variables_are_replaced_in_the_raw_text(text: str, replaced: str) -> None:
    assert substitute(text, {"X": "x", "EMPTY": ""}) == replaced


def test_a_secret_never_shows(tmp_path: Path) -> None:
    settings = from_file(tmp_path, FILE, {"WORKER_KEY": "s3cr3t"})
    assert "s3cr3t" not in repr(settings)
    assert settings.api_key.get_secret_value() == "s3cr3t"
    (described,) = [each for each in settings.describe() if each.name == "api_key"]
    assert described.value == "****"
    assert "config.yml:4:12" in described.origin


def test_importing_the_settings_of_a_worker_stays_light() -> None:
    code = (
        "import sys, runqy.settings.worker\n"
        "heavy = {'sqlalchemy', 'fastapi', 'pydantic', 'redis', 'ruamel', 'dotenv', 'alembic'}\n"
        "print(sorted(heavy & {name.split('.')[0] for name in sys.modules}))\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.strip() == "[]"
