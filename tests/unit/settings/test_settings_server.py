"""Settings of the server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runqy.errors import ConfigurationError
from runqy.settings.secret import Secret
from runqy.settings.server import ServerSettings, load_server_settings
from runqy.tasks.limits import LEVERS, MAX_RETRY, TTL_COMPLETED, Source

MASTER_KEY = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="


def load(tmp_path: Path, environ: dict[str, str] | None = None, **flags: object) -> ServerSettings:
    folder = tmp_path / "project"
    folder.mkdir(exist_ok=True)
    return load_server_settings(flags, environ or {}, folder)


def problems(tmp_path: Path, environ: dict[str, str] | None = None, **flags: object) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, environ, **flags)
    return caught.value.problems


def test_defaults_are_embedded_storage_and_the_contracts_values(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert settings.port == 3000
    assert settings.public_url == "http://localhost:3000"
    assert settings.redis is None
    assert settings.database_url is None
    assert settings.data_dir == Path(".runqy")
    assert settings.effective_database_url.get_secret_value().endswith("/.runqy/runqy.db")
    assert settings.api_key is None
    assert settings.max_body_size == 52_428_800
    assert settings.durability == "everysec"
    assert (settings.config_dir, settings.config_repository) == (None, None)
    assert settings.warnings == ()
    limits = settings.defaults
    assert [limits.value(lever) for lever in LEVERS] == [3, 86400, 259200, 0, 0]


def test_flags_win_over_environment_and_environment_over_dotenv(tmp_path: Path) -> None:
    """Product decision 23."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / ".env").write_text("PORT=1111\nRUNQY_API_KEY=from-file\nRUNQY_DURABILITY=always\n")
    settings = load(tmp_path, {"PORT": "2222", "RUNQY_API_KEY": "from-environment"}, port="3333")
    assert settings.port == 3333
    assert settings.api_key == Secret("from-environment")
    assert settings.durability == "always"


def test_the_secret_dotenv_file_is_read_instead_of_the_plain_one(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / ".env").write_text("PORT=1111\nRUNQY_DURABILITY=always\n")
    (tmp_path / ".env.secret").write_text("PORT=2222\n")
    settings = load(tmp_path)
    assert (settings.port, settings.durability) == (2222, "everysec")


def test_a_dotenv_line_that_can_not_be_read_is_told_without_its_text(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / ".env").write_text("PORT=1\nRUNQY_API_KEY='s3cret\nX=1\n")
    (problem,) = problems(tmp_path)
    assert ".env:2: not a line of the form NAME=value" in problem
    assert "s3cret" not in problem


def test_an_empty_variable_is_unset(tmp_path: Path) -> None:
    settings = load(tmp_path, {"PORT": "", "RUNQY_API_KEY": "", "RUNQY_DEFAULT_MAX_RETRY": "", "REDIS_HOST": ""})
    assert (settings.port, settings.api_key, settings.redis) == (3000, None, None)
    assert settings.defaults.source(MAX_RETRY) is Source.DEFAULT


def test_the_levers_come_from_the_environment_with_their_source(tmp_path: Path) -> None:
    """R27 to R31, R13."""
    settings = load(tmp_path, {"RUNQY_DEFAULT_MAX_RETRY": "0", "RUNQY_DEFAULT_TTL_COMPLETED": "1.5s"})
    assert settings.defaults.max_retry == 0
    assert settings.defaults.ttl_completed == 2
    assert settings.defaults.source(TTL_COMPLETED) is Source.ENVIRONMENT
    assert settings.warnings == ("RUNQY_DEFAULT_TTL_COMPLETED: 1.5s is rounded up to 2 s",)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("RUNQY_DEFAULT_MAX_RETRY", "x", 'RUNQY_DEFAULT_MAX_RETRY must be an integer >= 0, got "x"'),
        ("RUNQY_DEFAULT_MAX_RETRY", "-1", "RUNQY_DEFAULT_MAX_RETRY must be >= 0, got -1"),
        ("RUNQY_DEFAULT_TTL_COMPLETED", "24hh", 'RUNQY_DEFAULT_TTL_COMPLETED: invalid duration "24hh"'),
        ("RUNQY_DEFAULT_TTL_ARCHIVED", "-5s", 'RUNQY_DEFAULT_TTL_ARCHIVED must be >= 0, got "-5s"'),
        ("RUNQY_DEFAULT_PENDING_TIMEOUT", "3600", 'RUNQY_DEFAULT_PENDING_TIMEOUT: invalid duration "3600"'),
        ("RUNQY_DEFAULT_ACTIVE_TIMEOUT", "true", 'RUNQY_DEFAULT_ACTIVE_TIMEOUT: invalid duration "true"'),
        ("PORT", "0", "PORT must be >= 1, got 0"),
        ("PORT", "65536", "PORT must be at most 65535, got 65536"),
        ("PORT", "3000\n", 'PORT must be a whole number such as 1, got "3000\\n"'),
        ("PORT", "03000", "PORT must be a whole number"),
        ("CONFIG_WATCH_INTERVAL", "0", "CONFIG_WATCH_INTERVAL must be positive, got 0"),
        ("REDIS_TLS", "yes", 'REDIS_TLS must be true or false, got "yes"'),
        ("RUNQY_PUBLIC_RESULTS", "on", "RUNQY_PUBLIC_RESULTS must be true or false"),
        ("RUNQY_DURABILITY", "allways", "RUNQY_DURABILITY must be everysec or always"),
        ("RUNQY_REDIS_ADVERTISE", "host", "RUNQY_REDIS_ADVERTISE must be host:port"),
        ("RUNQY_PUBLIC_URL", "example.com", "RUNQY_PUBLIC_URL must be a URL"),
        ("DATABASE_SSL", "enable", "DATABASE_SSL must be disable or allow"),
    ],
)
def test_a_malformed_value_is_refused_by_name_and_value(tmp_path: Path, name: str, value: str, text: str) -> None:
    """R57, R58, R62."""
    (problem,) = problems(tmp_path, {name: value})
    assert problem.startswith(text)


def test_all_problems_are_listed_together(tmp_path: Path) -> None:
    found = problems(
        tmp_path, {"PORT": "x", "REDIS_TLS": "1", "RUNQY_DEFAULT_TTL_COMPLETED": "1d"}, watch_interval="-1"
    )
    assert [problem.split()[0].rstrip(":") for problem in found] == [
        "PORT",
        "REDIS_TLS",
        "--watch-interval",
        "RUNQY_DEFAULT_TTL_COMPLETED",
    ]
    assert found[2] == "--watch-interval must be positive, got -1"


@pytest.mark.parametrize(
    "name",
    [
        "RUNQY_API_KEY",
        "RUNQY_WORKER_API_KEY",
        "RUNQY_CLIENT_API_KEY",
        "REDIS_PASSWORD",
        "DATABASE_PASSWORD",
        "RUNQY_JWT_SECRET",
        "GITHUB_PAT",
        "RUNQY_VAULT_MASTER_KEY",
        "RUNQY_REDIS_URL",
        "RUNQY_DATABASE_URL",
    ],
)
def test_a_refused_secret_is_never_shown(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, {name: "hunter2hunter2 \n"})
    text = "\n".join(caught.value.lines())
    assert name in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("RUNQY_API_KEY", "the-key", "api_key"),
        ("RUNQY_WORKER_API_KEY", "the-key", "worker_api_key"),
        ("RUNQY_CLIENT_API_KEY", "the-key", "client_api_key"),
        ("RUNQY_JWT_SECRET", "the secret", "jwt_secret"),
        ("GITHUB_PAT", "ghp_x", "github_pat"),
        ("RUNQY_VAULT_MASTER_KEY", MASTER_KEY, "vault_master_key"),
        ("RUNQY_DATABASE_URL", "postgresql://u:p@h/d", "database_url"),
    ],
)
def test_every_secret_can_stand_in_a_file(tmp_path: Path, name: str, value: str, field: str) -> None:
    file = tmp_path / "secret"
    file.write_text(value + "\n")
    settings = load(tmp_path, {name + "_FILE": str(file)})
    assert getattr(settings, field) == Secret(value)
    assert value not in repr(settings)
    (described,) = [each for each in settings.describe() if each.name == field]
    assert described.value == "****"
    assert str(file) in described.origin


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\xfe"])
def test_a_secret_file_that_can_not_be_read_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    (problem,) = problems(tmp_path, {"RUNQY_API_KEY_FILE": str(file)})
    assert problem.startswith(f"RUNQY_API_KEY_FILE: {file} ")


def test_a_key_and_its_file_together_warn_and_the_key_wins(tmp_path: Path) -> None:
    settings = load(tmp_path, {"RUNQY_API_KEY": "direct", "RUNQY_API_KEY_FILE": "/nowhere"})
    assert settings.api_key == Secret("direct")
    assert settings.warnings == ("RUNQY_API_KEY and RUNQY_API_KEY_FILE are both set; RUNQY_API_KEY is used",)


def test_a_key_that_can_not_travel_in_a_header_is_refused(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, {"RUNQY_API_KEY": "schlüssel"})
    assert "ASCII" in problem
    assert "schlüssel" not in problem


def test_a_secret_in_a_flag_works_and_warns(tmp_path: Path) -> None:
    """Product decision 25."""
    settings = load(tmp_path, api_key="the-key", redis_uri="redis://:pw@h")
    assert settings.api_key == Secret("the-key")
    assert [warning.split()[0] for warning in settings.warnings] == ["--api-key", "--redis-uri"]
    assert all("_FILE" in warning for warning in settings.warnings)


@pytest.mark.parametrize(
    ("name", "guess"),
    [
        ("RUNQY_DEFUALT_MAX_RETRY", "RUNQY_DEFAULT_MAX_RETRY"),
        ("RUNQY_APIKEY", "RUNQY_API_KEY"),
        ("RUNQY_QUEUE", "RUNQY_QUEUES"),
        ("runqy_api_key", "RUNQY_API_KEY"),
    ],
)
def test_a_misspelt_variable_with_our_prefix_is_told_with_the_nearest_name(
    tmp_path: Path, name: str, guess: str
) -> None:
    """Case C76."""
    (warning,) = load(tmp_path, {name: "5"}).warnings
    assert name in warning
    assert f"did you mean {guess}?" in warning


def test_variables_of_others_and_of_other_parts_are_passed_over(tmp_path: Path) -> None:
    environ = {"HF_TOKEN": "x", "PATH": "/bin", "RUNQY_SERVER": "http://h", "RUNQY_SERVER_URL": "http://h"}
    assert load(tmp_path, environ | {"RUNQY_TTL_COMPLETED": "1h", "RUNQY_KILL_GRACE": "2s"}).warnings == ()


@pytest.mark.parametrize(
    ("environ", "flags", "url", "password"),
    [
        ({"RUNQY_REDIS_URL": "redis://:p%40ss@h:7000/2"}, {}, "redis://h:7000/2", "p@ss"),
        ({"RUNQY_REDIS_URL": "rediss://u:pw@h"}, {}, "rediss://u@h:6379", "pw"),
        ({"RUNQY_REDIS_URL": "redis://h"}, {"redis_tls": True}, "rediss://h:6379", ""),
        ({"RUNQY_REDIS_URL": "redis://h", "REDIS_PASSWORD": "pw"}, {}, "redis://h:6379", "pw"),
        ({"REDIS_HOST": "h"}, {}, "redis://h:6379", ""),
        ({"REDIS_PASSWORD": "pw"}, {}, "redis://localhost:6379", "pw"),
        ({"REDIS_HOST": "h", "REDIS_PORT": "7", "REDIS_TLS": "true"}, {}, "rediss://h:7", ""),
        ({"REDIS_HOST": "h", "RUNQY_REDIS_URL": "redis://other"}, {}, "redis://other:6379", ""),
        (
            {"REDIS_HOST": "h", "RUNQY_REDIS_URL": "redis://other"},
            {"redis_uri": "redis://third"},
            "redis://third:6379",
            "",
        ),
        ({"RUNQY_REDIS_URL": "unix:///run/redis.sock"}, {}, "unix:///run/redis.sock", ""),
        ({"RUNQY_REDIS_URL": "redis://[::1]:7000"}, {}, "redis://[::1]:7000", ""),
    ],
)
def test_redis_is_chosen_by_url_or_by_the_originals_variables(
    tmp_path: Path, environ: dict[str, str], flags: dict[str, object], url: str, password: str
) -> None:
    redis = load(tmp_path, environ, **flags).redis
    assert redis is not None
    assert (redis.url, redis.password) == (url, password)
    assert password == "" or password not in repr(redis)


def test_a_real_variable_beats_the_url_of_a_dotenv_file(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / ".env").write_text("RUNQY_REDIS_URL=redis://file\n")
    redis = load(tmp_path, {"REDIS_HOST": "real"}).redis
    assert redis is not None
    assert redis.address == "real:6379"


def test_sentinel_and_cluster_are_chosen_by_scheme(tmp_path: Path) -> None:
    """Product decision 26."""
    sentinel = load(tmp_path, {"RUNQY_REDIS_URL": "redis+sentinel://u:pw@a,b:26380/main/1"}).redis
    assert sentinel is not None
    assert (sentinel.mode, sentinel.nodes, sentinel.master) == ("sentinel", ("a:26379", "b:26380"), "main")
    assert (sentinel.db, sentinel.username, sentinel.password) == (1, "u", "pw")
    cluster = load(tmp_path, {"RUNQY_REDIS_URL": "rediss+cluster://a:7000,b:7001"}).redis
    assert cluster is not None
    assert (cluster.mode, cluster.nodes, cluster.use_tls) == ("cluster", ("a:7000", "b:7001"), True)


@pytest.mark.parametrize(
    "url",
    [
        "h:6379",
        "http://h",
        "redis://h:port",
        "redis://h:70000",
        "redis://h/name",
        "redis://a,b",
        "redis+sentinel://a",
        "redis+cluster://a/3",
        "redis://h/0?ssl=1",
    ],
)
def test_a_redis_address_that_can_not_be_used_is_refused(tmp_path: Path, url: str) -> None:
    (problem,) = problems(tmp_path, {"RUNQY_REDIS_URL": url})
    assert problem.startswith("RUNQY_REDIS_URL: ")


@pytest.mark.parametrize(
    ("environ", "flags", "url"),
    [
        ({"RUNQY_DATABASE_URL": "postgres://u:p@h/d"}, {}, "postgresql://u:p@h/d"),
        ({"DATABASE_HOST": "h"}, {}, "postgresql://postgres@h:5432/sdxl_queuing_dev?sslmode=disable"),
        (
            {"DATABASE_USER": "u", "DATABASE_PASSWORD": "p@:/", "DATABASE_DBNAME": "d", "DATABASE_SSL": "require"},
            {"db_port": 5433},
            "postgresql://u:p%40%3A%2F@localhost:5433/d?sslmode=require",
        ),
        ({"SQLITE_DB_PATH": "/data/x.db"}, {}, "sqlite:////data/x.db"),
        ({"DATABASE_HOST": "h"}, {"sqlite_path": "/x.db"}, "sqlite:////x.db"),
        ({"DATABASE_HOST": "h", "SQLITE_DB_PATH": "/x.db"}, {"sqlite": True}, "sqlite:////x.db"),
        (
            {"DATABASE_HOST": "h", "SQLITE_DB_PATH": "/x.db"},
            {},
            "postgresql://postgres@h:5432/sdxl_queuing_dev?sslmode=disable",
        ),
        ({"DATABASE_HOST": "h", "RUNQY_DATABASE_URL": "postgresql://o/d"}, {}, "postgresql://o/d"),
    ],
)
def test_the_database_is_chosen_by_url_or_by_the_originals_variables(
    tmp_path: Path, environ: dict[str, str], flags: dict[str, object], url: str
) -> None:
    database = load(tmp_path, environ, **flags).database_url
    assert database is not None
    assert database.get_secret_value() == url


def test_postgresql_without_a_key_is_refused_for_serving(tmp_path: Path) -> None:
    """Product decision 21."""
    with pytest.raises(ConfigurationError, match="No admin key") as caught:
        load(tmp_path, {"DATABASE_HOST": "h"}).require_admin_key()
    assert "RUNQY_API_KEY_FILE" in caught.value.hint
    load(tmp_path, {"DATABASE_HOST": "h", "RUNQY_API_KEY": "k"}).require_admin_key()
    load(tmp_path).require_admin_key()


def test_queue_files_come_from_the_flag_the_variable_or_the_default_folder(tmp_path: Path) -> None:
    assert load(tmp_path, {"QUEUE_WORKERS_DIR": "/queues"}).config_dir == Path("/queues")
    assert load(tmp_path, {"QUEUE_WORKERS_DIR": "/queues"}, config="/other").config_dir == Path("/other")
    (tmp_path / "queueworkers").mkdir()
    found = load(tmp_path).config_dir
    assert found is not None
    assert found.resolve() == tmp_path / "queueworkers"


def test_a_body_size_of_zero_or_less_means_the_default(tmp_path: Path) -> None:
    assert load(tmp_path, {"RUNQY_MAX_BODY_SIZE": "-1"}).max_body_size == 52_428_800
    assert load(tmp_path, {"RUNQY_MAX_BODY_SIZE": "1000"}).max_body_size == 1000


def test_every_setting_tells_its_origin(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / ".env").write_text("RUNQY_DURABILITY=always\n")
    settings = load(tmp_path, {"PORT": "4000"}, data_dir="/d")
    origins = {each.name: each.origin for each in settings.describe()}
    assert origins["port"] == "environment variable PORT"
    assert origins["data_dir"] == "flag --data-dir"
    assert origins["durability"] == f"RUNQY_DURABILITY in {tmp_path / 'project' / '.env'}"
    assert origins["host"] == "default"
    assert {"max_retry", "ttl_completed", "redis_url", "database_url"} <= set(origins)


def test_an_unknown_flag_is_a_slip_of_the_program(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="nonsense"):
        load(tmp_path, nonsense=1)


def test_the_process_environment_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("RUNQY_", "REDIS_", "DATABASE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PORT", "4321")
    assert load_server_settings({}, cwd=tmp_path).port == 4321
