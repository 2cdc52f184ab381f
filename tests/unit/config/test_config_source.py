"""Queue files."""

from __future__ import annotations

from pathlib import Path

import pytest

from runqy.config.model import Deployment, Field, FieldType, Mode, QueueConfig, Scheduling, SubQueue, Webhook
from runqy.config.source import load_create_file, load_file, load_folder, load_text
from runqy.errors import ConfigurationError
from runqy.tasks.limits import Limits, Override, resolve
from runqy.tasks.retry import Backoff, RetryPolicy

R26 = """
queues:
  inference:
    priority: 6
    deployment:
      git_url: "https://github.com/your-org/inference.git"
      branch: "main"
      startup_cmd: "python main.py"
      startup_timeout_secs: 300
      limits:
        max_retry: 1
        ttl_completed: "1h"
        ttl_archived: "24h"
        pending_timeout: "5m"
        active_timeout: "30s"
"""
SMALL = "queues:\n  q:\n    priority: 5\n    deployment:\n      git_url: x\n      startup_cmd: y\n"


def queue(text: str) -> QueueConfig:
    (only,) = load_text(text, "q.yaml").queues
    return only


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load_text(text, "q.yaml")
    return list(caught.value.problems)


def in_deployment(line: str) -> str:
    return SMALL + f"      {line}\n"


def in_queue(line: str) -> str:
    return SMALL + f"    {line}\n"


def test_the_example_of_the_lifecycle_page_loads() -> None:
    """R26: its tasks carry 1, 3600, 86400, 300, 30, and its results are kept."""
    inference = queue(R26)
    limits = resolve(Limits(), inference.limits)
    values = (
        limits.max_retry,
        limits.ttl_completed,
        limits.ttl_archived,
        limits.pending_timeout,
        limits.active_timeout,
    )
    assert values == (1, 3600, 86400, 300, 30)
    assert inference.full_names() == ("inference.default",)
    assert inference.priority == 6
    assert inference.deployment is not None
    assert inference.deployment.keeps_results
    assert inference.deployment.startup_timeout_secs == 300


def test_the_smallest_queue_has_the_contracts_defaults() -> None:
    assert queue(SMALL) == QueueConfig(
        "q", (SubQueue("default", 5),), Deployment(git_url="x", startup_cmd="y", branch="main", mode=Mode.LONG_RUNNING)
    )
    deployment = queue(SMALL).deployment
    assert deployment is not None
    assert deployment.redis_storage is None
    assert deployment.startup_seconds == 60


def test_everything_that_a_queue_can_say() -> None:
    text = """
queues:
  all:
    sub_queues: [{name: high, priority: 10}, {name: low, priority: 2}]
    description: All of it
    scheduling: weighted
    max_pending: 500
    webhook: {url: "https://example.com/h", secret: "vault://keys/HOOK"}
    redact: [password, 1]
    input:
      - {name: n, type: [int, float], required: false, default: 3.0, description: how many}
      - {name: text, type: string}
    output: [{name: label, type: [string]}]
    autoscale: {enabled: true, provider: mock, min_workers: 0, max_workers: 3, poll_interval: 30s,
                scale_up: [{type: queue_depth, threshold: 5}], scale_down: [{type: idle, timeout: 5m}]}
    deployment:
      git_url: git@example.com:r.git
      branch: 1e5
      code_path: src/worker/
      startup_cmd: python main.py --flag 'a b'
      mode: one_shot
      redis_storage: false
      vaults: [keys]
      git_token: vault://keys/TOKEN
      prestart: true
      retry: {delay: 1.5s, backoff: linear, max_delay: 1m, jitter: 0}
"""
    found = queue(text)
    assert found.full_names() == ("all.high", "all.low")
    assert (found.scheduling, found.max_pending, found.redact) == (Scheduling.WEIGHTED, 500, ("password", "1"))
    assert found.webhook == Webhook("https://example.com/h", "vault://keys/HOOK")
    number = Field("n", (FieldType.INT, FieldType.FLOAT), False, "3", "how many")
    assert found.input == (number, Field("text", (FieldType.STRING,)))
    deployment = found.deployment
    assert deployment is not None
    assert (deployment.branch, deployment.code_path, deployment.mode) == ("1e5", "src/worker", Mode.ONE_SHOT)
    assert not deployment.keeps_results
    assert found.retry == RetryPolicy(1.5, Backoff.LINEAR, 60.0, 0.0)
    assert deployment.autoscale is not None
    assert deployment.autoscale.enabled


def test_a_local_folder_can_stand_in_place_of_a_repository() -> None:
    """Product decision 27."""
    deployment = queue(SMALL.replace("git_url: x", "path: ./code")).deployment
    assert deployment is not None
    assert (deployment.git_url, deployment.path) == ("", "./code")


def test_a_command_in_a_block_text_loses_its_last_newline() -> None:
    deployment = queue(SMALL.replace("startup_cmd: y", "startup_cmd: |\n        python main.py")).deployment
    assert deployment is not None
    assert deployment.startup_cmd == "python main.py"
    (problem,) = problems(SMALL.replace("startup_cmd: y", "startup_cmd: |\n        a\n        b"))
    assert "deployment.startup_cmd must be one line" in problem


@pytest.mark.parametrize("typed", ["1e5", "1.10", "0123", "no", "on", "yes", "0x10", "2024-01-01", "true"])
def test_a_branch_is_what_was_typed(typed: str) -> None:
    """Case C75."""
    deployment = queue(in_deployment(f"branch: {typed}")).deployment
    assert deployment is not None
    assert deployment.branch == typed


@pytest.mark.parametrize("name", ["on", "null", "1", "no", "true", "0123"])
def test_a_queues_name_is_a_text(name: str) -> None:
    assert queue(SMALL.replace("  q:", f"  {name}:")).name == name


@pytest.mark.parametrize(
    ("line", "override"),
    [
        ("max_retry: 0", Override(max_retry=0)),
        ("max_retry: '3'", Override(max_retry=3)),
        ("ttl_completed: 0", Override(ttl_completed=0)),
        ('ttl_completed: "0"', Override(ttl_completed=0)),
        ("ttl_completed: 0s", Override(ttl_completed=0)),
        ("ttl_completed: ''", Override()),
        ("ttl_completed: ", Override()),
        ("active_timeout: 500ms", Override(active_timeout=1)),
        ("pending_timeout: 1h30m", Override(pending_timeout=5400)),
    ],
)
def test_limits_that_are_set(line: str, override: Override) -> None:
    """R14, R15, R19, R24, R25."""
    assert queue(in_deployment(f"limits: {{{line}}}")).limits == override


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("max_retry: -1", "limits.max_retry must be >= 0, got -1"),
        ("ttl_completed: -5s", 'limits.ttl_completed must be >= 0, got "-5s"'),
        ("ttl_completed: 24hh", 'limits.ttl_completed: invalid duration "24hh" (use forms like "24h", "90s", "0"): '),
        ("ttl_archived: 3600", 'limits.ttl_archived: invalid duration 3600 (use forms like "24h", "90s", "0"): '),
        ('ttl_archived: "3600"', 'limits.ttl_archived: invalid duration "3600" (use forms like "24h", "90s", "0"): '),
        ("pending_timeout: off", 'limits.pending_timeout: invalid duration "off" '),
        ("pending_timeout: no", 'limits.pending_timeout: invalid duration "no" '),
        ("pending_timeout: 1:30", 'limits.pending_timeout: invalid duration "1:30" '),
        ("active_timeout: true", "limits.active_timeout: invalid duration true "),
        ("active_timeout: 30.0", "limits.active_timeout: invalid duration 30.0 "),
        ("active_timeout: [30s]", "limits.active_timeout: invalid duration ['30s'] "),
        ("active_timeout: {}", "limits.active_timeout: invalid duration {} "),
        ("active_timeout: ' 30s '", 'limits.active_timeout: invalid duration " 30s " '),
        ("active_timeout: 1d", 'limits.active_timeout: invalid duration "1d" '),
        ("max_retry: true", "limits.max_retry must be an integer >= 0, got true"),
        ("max_retry: off", 'limits.max_retry must be an integer >= 0, got "off"'),
        ("max_retry: 010", 'limits.max_retry must be an integer >= 0, got "010"'),
        ("max_retry: 0x10", 'limits.max_retry must be an integer >= 0, got "0x10"'),
        ("max_retry: 1_000", 'limits.max_retry must be an integer >= 0, got "1_000"'),
        ("max_retry: 3.0", "limits.max_retry must be an integer >= 0, got 3.0"),
        ("max_retry: 1e2", "limits.max_retry must be an integer >= 0, got 100.0"),
        ("max_retries: 3", "limits: unknown key 'max_retries', did you mean 'max_retry'?"),
        ("ttl_complete: 1h", "limits: unknown key 'ttl_complete', did you mean 'ttl_completed'?"),
    ],
)
def test_limits_that_are_refused(line: str, text: str) -> None:
    """R57, R58; cases C72 and C75."""
    (problem,) = problems(in_deployment(f"limits: {{{line}}}"))
    assert problem.startswith("q.yaml:7:")
    assert problem.split(": ", 1)[1].startswith(f"queue 'q': deployment.{text}")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (SMALL.replace("    priority: 5\n", ""), "q.yaml:3:5: queue 'q': either priority or sub_queues is required"),
        (SMALL.replace("priority: 5", "priority: 0"), "queue 'q': either priority or sub_queues is required"),
        (SMALL.replace("priority: 5", "sub_queues: [{priority: 1}]"), "queue 'q': sub_queues[0].name is required"),
        (SMALL.replace("priority: 5", "sub_queues: [{name: a}]"), "queue 'q': sub_queues[0].priority is required"),
        (
            SMALL.replace("priority: 5", "sub_queues: [{name: a, priority: 0}]"),
            "queue 'q': sub_queues[0].priority is required",
        ),
        (
            SMALL.replace("  q:", "  a.b:"),
            "q.yaml:2:3: queue name 'a.b' cannot contain '.' (reserved as separator)",
        ),
        (
            SMALL.replace("priority: 5", "sub_queues: [{name: a.b, priority: 1}]"),
            "queue name 'a.b' cannot contain '.' (reserved as separator)",
        ),
        ("queues: {q: {priority: 1}}", "queue 'q': deployment is required"),
        ("queues: {q: }", "queue 'q': deployment is required"),
        (SMALL.replace("git_url: x", "branch: b"), "queue 'q': deployment.git_url is required"),
        (SMALL.replace("startup_cmd: y", "branch: b"), "queue 'q': deployment.startup_cmd is required"),
    ],
)
def test_what_is_missing_is_told_in_the_contracts_words(text: str, problem: str) -> None:
    assert any(problem in found for found in problems(text)), problems(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (in_queue("limits: {max_retry: 1}"), "q.yaml:7:5: queue 'q': key 'limits' belongs below 'deployment:'"),
        (in_queue("priorty: 1"), "q.yaml:7:5: queue 'q': unknown key 'priorty', did you mean 'priority'?"),
        (in_deployment("limit: {}"), "q.yaml:7:7: queue 'q': deployment: unknown key 'limit', did you mean 'limits'?"),
        (SMALL + "queue: {}\n", "q.yaml:7:1: unknown key 'queue', did you mean 'queues'?"),
        ("q:\n  priority: 1\n", "q.yaml:1:1: unknown key 'q', known are queues"),
        (SMALL + "deployment: {}\n", "q.yaml:7:1: key 'deployment' stands at the root of the file"),
        (in_deployment("startup_cmd: z"), "q.yaml:7:7: duplicate key 'startup_cmd', first on line 6"),
        (SMALL + SMALL.removeprefix("queues:\n"), "q.yaml:7:3: duplicate key 'q', first on line 2"),
        (
            SMALL.replace("priority: 5", "priority: '5'"),
            'priority must be a whole number, got "5" (write it',
        ),
        (SMALL.replace("priority: 5", "priority: 1.5"), "queue 'q': priority must be a whole number, got 1.5"),
        (SMALL.replace("priority: 5", "priority: -1"), "queue 'q': priority must be from 1 to 2147483647, got -1"),
        (SMALL.replace("priority: 5", "priority: true"), "queue 'q': priority must be a whole number, got true"),
        (in_deployment("redis_storage: no"), "queue 'q': deployment.redis_storage must be true or false, got \"no\""),
        (in_deployment("redis_storage: 1"), "queue 'q': deployment.redis_storage must be true or false, got 1"),
        (in_deployment("mode: oneshot"), "queue 'q': invalid mode 'oneshot', must be 'long_running' or 'one_shot'"),
        (in_deployment("startup_timeout_secs: 5m"), "startup_timeout_secs must be a whole number"),
        (in_deployment("startup_timeout_secs: -1"), "startup_timeout_secs must be from 0"),
        (in_deployment("vaults: keys"), "deployment.vaults must be a list"),
        (in_deployment("vaults: ['../x']"), "deployment.vaults[0] must be the name of a vault"),
        (in_deployment("code_path: ../x"), "deployment.code_path must be a folder inside the repository"),
        (in_deployment("branch: --upload-pack=x"), "deployment.branch must be the name of a branch"),
        (in_deployment("path: ./x"), "deployment.path and git_url exclude each other"),
        (SMALL.replace("git_url: x", "git_url: --x"), "deployment.git_url must be the address of a repository"),
        (in_deployment("retry: {delay: 5}"), "deployment.retry.delay: invalid duration 5"),
        (
            in_deployment("retry: {backoff: cubic}"),
            "retry.backoff must be one of exponential, linear, fixed",
        ),
        (in_deployment("retry: {wait: 5s}"), "deployment.retry: unknown key 'wait'"),
        (in_queue("scheduling: fair"), "queue 'q': scheduling must be strict or weighted, got 'fair'"),
        (in_queue("max_pending: -1"), "queue 'q': max_pending must be >= 0"),
        (in_queue("webhook: {url: ftp://x}"), "queue 'q': webhook.url must begin with http"),
        (in_queue("webhook: {}"), "queue 'q': webhook.url is required"),
        (in_queue("input: [{name: a}]"), "queue 'q': input[0].type is required"),
        (in_queue("input: [{name: a, type: [str]}]"), "queue 'q': input[0].type: unknown type 'str', did you mean"),
        (in_queue("input: [{type: [int]}]"), "queue 'q': input[0].name is required"),
        (
            in_queue("input: [{name: a, type: int, default: x}]"),
            "input[0].default has type string, expected",
        ),
        (in_queue("input: [{name: a, type: int}, {name: a, type: int}]"), "input[1]: 'a' is listed twice"),
        (
            SMALL.replace("priority: 5", "sub_queues: [{name: a, priority: 1}, {name: a, priority: 2}]"),
            "queue 'q': sub_queues[1]: 'a' is listed twice",
        ),
        (SMALL.replace("  q:", "  '12:30':"), "invalid queue name '12:30'"),
        (in_queue("autoscale: {enabled: true}"), "autoscale.provider is required"),
        ("- a\n", "q.yaml:1:1: the file must be a map of keys and values, got a list"),
        ("queues: [a]\n", "q.yaml:1:9: 'queues' must be a map of keys and values, got a list"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(text: str, problem: str) -> None:
    """Product decision 8, case C74."""
    assert any(problem in found for found in problems(text)), problems(text)
    assert all(found.startswith("q.yaml:") for found in problems(text))


@pytest.mark.parametrize(
    "text",
    [
        in_deployment("git_token: ghp_s3cr3t"),
        SMALL.replace("git_url: x", "git_url: https://u:ghp_s3cr3t@example.com/r"),
        SMALL.replace("git_url: x", "git_url: https://ghp_s3cr3t0123456789abcdef@example.com/r"),
        in_queue("webhook: {url: 'https://h', secret: ghp_s3cr3t}"),
        in_queue("webhook: {url: 'https://u:ghp_s3cr3t@h'}"),
    ],
)
def test_a_secret_in_a_queue_file_is_refused_and_not_shown(text: str) -> None:
    """Product decision 25."""
    (problem,) = problems(text)
    assert "ghp_s3cr3t" not in problem


def test_keys_of_the_originals_examples_without_effect_are_accepted_with_a_warning() -> None:
    loaded = load_text(in_deployment("env_vars: {A: b}") + "    provider: x\n", "q.yaml")
    assert [warning.split(" ")[0] for warning in loaded.warnings] == ["q.yaml:7:7:", "q.yaml:8:5:"]
    assert all("has no effect" in warning for warning in loaded.warnings)


def test_rounding_up_is_told_once() -> None:
    """Product decision 6."""
    loaded = load_text(in_deployment("limits: {active_timeout: 1.5s}"), "q.yaml")
    assert loaded.warnings == ("q.yaml:7:32: queue 'q': deployment.limits.active_timeout: 1.5s is rounded up to 2 s",)


def test_anchors_below_x_keys_can_be_shared() -> None:
    text = "x-code: &code {git_url: x, startup_cmd: y}\nqueues:\n  a: {priority: 1, deployment: *code}\n"
    text += "  b: {priority: 1, deployment: {<<: *code, branch: dev}}\n"
    first, second = load_text(text, "q.yaml").queues
    assert (first.deployment, second.deployment) == (
        Deployment(git_url="x", startup_cmd="y"),
        Deployment(git_url="x", startup_cmd="y", branch="dev"),
    )


def test_a_folder_is_read_yaml_first_then_yml_each_by_name(tmp_path: Path) -> None:
    for file, name in (("b.yaml", "one"), ("a.yml", "three"), ("c.yaml", "two")):
        (tmp_path / file).write_text(SMALL.replace("  q:", f"  {name}:"))
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    (tmp_path / "notes.txt").write_text("not: [yaml")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "d.yaml").write_text("not: [yaml")
    loaded = load_folder(tmp_path)
    assert [found.name for found in loaded.queues] == ["one", "two", "three"]
    assert loaded.files == 4


def test_all_problems_of_all_files_are_listed_and_nothing_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SMALL)
    (tmp_path / "b.yaml").write_text(SMALL + "      mode: x\n      limits: {max_retry: -1}\n")
    (tmp_path / "c.yaml").write_text("queues: [\n")
    (tmp_path / "d.yaml").write_bytes(b"queues:\n  \xff\n")
    with pytest.raises(ConfigurationError, match="failed to load YAML files from") as caught:
        load_folder(tmp_path)
    places = [problem.rpartition(f"{tmp_path}/")[2].split(" ")[0] for problem in caught.value.problems]
    assert [place.split(":")[0] for place in places] == ["a.yaml", "b.yaml", "b.yaml", "c.yaml", "d.yaml"]
    assert "queue 'q' is defined twice, first at" in caught.value.problems[0]
    assert caught.value.problems[-1].endswith("d.yaml:2:3: the file is not UTF-8 text")


def test_a_byte_order_mark_means_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbf" + SMALL.encode())
    assert load_file(tmp_path / "a.yaml").queues == (queue(SMALL),)


def test_windows_line_ends_are_fine() -> None:
    assert queue(SMALL.replace("\n", "\r\n")) == queue(SMALL)


def test_a_missing_folder_is_told_in_the_contracts_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"queueworkers directory not found: {tmp_path}/nope"):
        load_folder(tmp_path / "nope")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=f"{tmp_path}/file is not a directory"):
        load_folder(tmp_path / "file")


def test_the_single_form_of_config_create(tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text("name: single\npriority: 0\ndeployment: {git_url: x, startup_cmd: y}\n")
    assert load_create_file(file).queues == (
        QueueConfig("single", (SubQueue("default", 1),), Deployment(git_url="x", startup_cmd="y")),
    )
    file.write_text(SMALL)
    assert load_create_file(file).queues == (queue(SMALL),)


@pytest.mark.parametrize("text", ["", "queues: {}\n", "name: q\n", "name: q\ndeployment: {limits: {max_retry: -1}}\n"])
def test_a_create_file_that_says_nothing_usable_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "one.yaml").write_text(text)
    with pytest.raises(ConfigurationError):
        load_create_file(tmp_path / "one.yaml")
