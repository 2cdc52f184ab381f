"""Requests to create or change a queue, and the JSON form of queues."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runqy.config.encoding import deployment_document, duration_text, read_deployment_document, sub_queue_document
from runqy.config.model import Deployment, QueueConfig, SubQueue
from runqy.config.request import parse_queue_request
from runqy.config.source import load_text
from runqy.errors import ConfigurationError, UsageError
from runqy.settings.node import Reading
from runqy.tasks.limits import Override
from runqy.timing import parse_duration

CODE = {"git_url": "https://example.com/r.git", "branch": "main", "startup_cmd": "python main.py"}


def body(**more: Any) -> dict[str, Any]:
    return {"name": "made", "priority": 3, "deployment": dict(CODE)} | more


def problems(request: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        parse_queue_request(request)
    assert caught.value.http_status == 400
    return caught.value.problems


def test_the_answer_has_the_originals_shape() -> None:
    deployment = CODE | {"redis_storage": True, "vaults": ["keys"]}
    config = parse_queue_request(body(deployment=deployment)).applied_to(None)
    assert sub_queue_document(config, config.sub_queues[0], "made") == {
        "name": "made",
        "priority": 3,
        "deployment": CODE | {"startup_timeout_secs": 0, "redis_storage": True, "vaults": ["keys"]},
        "created_at": 0,
        "updated_at": 0,
    }


def test_a_queue_without_deployment_is_taken() -> None:
    config = parse_queue_request({"name": "bare", "priority": 1}).applied_to(None)
    assert config == QueueConfig("bare", (SubQueue("default", 1),), None)
    assert config.limits == Override()


def test_a_dotted_name_names_the_sub_queue() -> None:
    config = parse_queue_request(body(name="made.fast")).applied_to(None)
    assert config.full_names() == ("made.fast",)


@pytest.mark.parametrize("name", ["a.b.c", ".a", "a.", "a b", "-a", "a/b", "x" * 129, "{a}", "a\n"])
def test_a_name_of_another_form_is_refused(name: str) -> None:
    """Product decision 33, defect 68."""
    with pytest.raises(UsageError, match="invalid queue name"):
        parse_queue_request(body(name=name))


@pytest.mark.parametrize(
    ("request_body", "problem"),
    [
        (
            {"priority": 1},
            "Key: 'CreateQueueRequest.Name' Error:Field validation for 'Name' failed on the 'required' tag",
        ),
        (
            body(priority=0),
            "Key: 'CreateQueueRequest.Priority' Error:Field validation for 'Priority' failed on the 'required' tag",
        ),
        (body(deployment={"startup_cmd": "x"}), "git_url is required for deployment"),
        (body(deployment={"git_url": "x"}), "startup_cmd is required for deployment"),
        (body(deployment=CODE | {"limits": {"max_retry": -1}}), "limits.max_retry must be >= 0, got -1"),
        (body(deployment=CODE | {"limits": {"ttl_completed": "-1s"}}), 'limits.ttl_completed must be >= 0, got "-1s"'),
        (body(deployment=CODE | {"limit": {}}), "unknown key 'limit', did you mean 'limits'?"),
        (body(priority="3"), 'priority must be a whole number, got "3" (write it without quotes)'),
        (body(priority=True), "priority must be a whole number, got true (such as 5)"),
        (body(deployment=[]), "deployment must be a map of keys and values, got a list"),
        (body(prority=3), "unknown key 'prority', did you mean 'priority'?"),
    ],
)
def test_what_is_wrong_is_told_in_the_contracts_words(request_body: dict[str, Any], problem: str) -> None:
    """R61."""
    assert problem in problems(request_body)


@pytest.mark.parametrize("value", ["\0", "\ud800", float("nan"), float("inf"), {"\0": 1}])
@pytest.mark.parametrize("place", ["description", "default", "provider"])
def test_what_no_database_can_hold_is_refused(place: str, value: object) -> None:
    bodies = {
        "description": body(description=value),
        "default": body(input=[{"name": "a", "type": ["string", "object"], "required": False, "default": value}]),
        "provider": body(deployment=CODE | {"autoscale": {"enabled": False, "provider": value}}),
    }
    with pytest.raises(UsageError):
        parse_queue_request(bodies[place])


@pytest.mark.parametrize("value", [30, "30", 30.0, "30 s", "30S", "half an hour", True, [], {}, 1e3, " 30s ", "1d"])
@pytest.mark.parametrize("lever", ["ttl_completed", "ttl_archived", "pending_timeout", "active_timeout"])
def test_the_same_value_gets_the_same_answer_in_yaml_and_json(lever: str, value: object) -> None:
    """Case C72: refused at every entry point, with the same words behind the place."""
    (by_json,) = problems(body(deployment=CODE | {"limits": {lever: value}}))
    text = json.dumps({"queues": {"made": {"priority": 3, "deployment": CODE | {"limits": {lever: value}}}}})
    with pytest.raises(ConfigurationError) as caught:
        load_text(text, "q.yaml")
    (by_yaml,) = caught.value.problems
    assert by_json.startswith(f"limits.{lever}: invalid duration ")
    assert by_yaml.endswith(f"queue 'made': deployment.{by_json}")


@pytest.mark.parametrize("value", [0, "0", "0s", "", None])
def test_zero_and_empty_mean_the_same_in_yaml_and_json(value: object) -> None:
    document = {"priority": 3, "deployment": CODE | {"limits": {"ttl_completed": value}}}
    (by_yaml,) = load_text(json.dumps({"queues": {"made": document}}), "q.yaml").queues
    assert parse_queue_request({"name": "made"} | document).applied_to(None) == by_yaml
    assert by_yaml.limits == Override(ttl_completed=0 if value in (0, "0", "0s") else None)


def test_what_a_get_answered_can_be_sent_back() -> None:
    config = parse_queue_request(body()).applied_to(None)
    answered = sub_queue_document(config, config.sub_queues[0], "made")
    assert parse_queue_request(answered).applied_to(None) == config


def test_a_fraction_of_a_second_warns() -> None:
    request = parse_queue_request(body(deployment=CODE | {"limits": {"active_timeout": "500ms"}}))
    assert request.warnings == ("limits.active_timeout: 500ms is rounded up to 1 s",)
    assert request.config.limits == Override(active_timeout=1)


def test_what_is_not_given_stays_and_null_clears() -> None:
    stored = parse_queue_request(body(redact=["a"], max_pending=5, description="d")).applied_to(None)
    changed = parse_queue_request(body(max_pending=None)).applied_to(stored)
    assert (changed.redact, changed.max_pending, changed.description) == (("a",), None, "d")


def test_listed_sub_queues_replace_the_stored_ones() -> None:
    stored = parse_queue_request(body()).applied_to(None)
    subs = [{"name": "high", "priority": 9}, {"name": "low", "priority": 1}]
    changed = parse_queue_request({"name": "made", "sub_queues": subs}).applied_to(stored)
    assert changed.full_names() == ("made.high", "made.low")
    assert changed.deployment == stored.deployment


levers = st.fixed_dictionaries(
    {},
    optional={
        "max_retry": st.integers(0, 100),
        **{
            name: st.integers(0, 10**6).map(lambda seconds: f"{seconds}s")
            for name in ("ttl_completed", "ttl_archived", "pending_timeout", "active_timeout")
        },
    },
)


@given(
    st.fixed_dictionaries(
        {"git_url": st.just("https://example.com/r.git"), "startup_cmd": st.just("python main.py")},
        optional={
            "branch": st.from_regex(r"[a-z0-9][a-z0-9./]{0,10}", fullmatch=True),
            "mode": st.sampled_from(["long_running", "one_shot"]),
            "startup_timeout_secs": st.integers(0, 3600),
            "redis_storage": st.booleans(),
            "vaults": st.lists(st.from_regex(r"[a-z][a-z0-9_-]{0,9}", fullmatch=True), max_size=3),
            "limits": levers,
            "prestart": st.booleans(),
            "retry": st.just({"delay": "1.5s", "backoff": "fixed", "jitter": 0.5}),
        },
    )
)
def test_a_deployment_survives_its_json_form(document: dict[str, Any]) -> None:
    reading = Reading()
    deployment = read_deployment_document(document, reading)
    assert reading.problems == []
    assert isinstance(deployment, Deployment)
    again = json.loads(json.dumps(deployment_document(deployment)))
    assert read_deployment_document(again, Reading()) == deployment


@given(st.integers(0, 10**9))
def test_a_duration_survives_its_short_form(seconds: int) -> None:
    assert parse_duration(duration_text(seconds)) == seconds * 10**9


def test_durations_are_written_as_people_do() -> None:
    assert [duration_text(s) for s in (0, 30, 90, 300, 3600, 5400, 86400, 3661, 1.5)] == [
        *("0", "30s", "1m30s", "5m", "1h", "1h30m", "24h", "1h1m1s", "1.5s")
    ]
