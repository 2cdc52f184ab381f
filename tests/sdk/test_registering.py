"""What the decorators accept, and calling handlers in unit tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import runqy_python
from runqy_python import RetryableError, cancelled, load, log, progress, task, testing, unload
from runqy_python.decorator import _reset


@pytest.fixture(autouse=True)
def empty_registry() -> Iterator[None]:
    _reset()
    yield
    _reset()


def test_exported_names() -> None:
    assert runqy_python.__version__ == "0.3.0"
    assert sorted(runqy_python.__all__) == list(runqy_python.__all__)
    for name in runqy_python.__all__:
        assert getattr(runqy_python, name) is not None


def plain(payload: Any) -> Any:
    return payload


async def coroutine(payload: Any) -> Any:
    return payload


def stream(payload: Any) -> Iterator[Any]:
    yield payload


@pytest.mark.parametrize(
    ("options", "function", "text"),
    [
        ({"batch": 0}, plain, "@task(batch=0): expected a whole number, 1 or more"),
        ({"batch": True}, plain, "@task(batch=True): expected a whole number, 1 or more"),
        ({"threads": 1.5}, plain, "@task(threads=1.5): expected a whole number, 1 or more"),
        ({"batch": 2, "max_wait": -1}, plain, "@task(max_wait=-1): expected seconds, 0 or more"),
        ({"batch": 2, "max_wait": "10ms"}, plain, "@task(max_wait='10ms'): expected seconds, such as 0.01"),
        ({"concurrency": 2}, plain, "@task(concurrency=...) is for async def; a plain function takes threads="),
        ({"threads": 2}, coroutine, "@task(threads=...) is for plain functions; an async def takes concurrency="),
        (
            {"batch": 2},
            stream,
            "@task(batch=...) can't stream: its handler returns a list, so it must not yield",
        ),
        ({"retry_on": "ValueError"}, plain, "@task(retry_on=...): 'ValueError' is not an exception class"),
        ({"func": ""}, plain, '@task(""): a task name must not be empty'),
        ({"func": 5}, plain, "@task takes a function or a task name, not int"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], function: Any, text: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        task(**options)(function)
    assert str(caught.value) == text


def test_second_handler_of_the_same_name_is_refused() -> None:
    task("embed")(plain)
    task(plain)
    with pytest.raises(RuntimeError) as caught:
        task("embed")(coroutine)
    assert str(caught.value) == (
        "@task('embed') is already registered (plain). Only one handler is allowed per task name."
    )
    with pytest.raises(RuntimeError, match=r"^@task handler already registered \(plain\)\. Only one"):
        task(batch=2)(plain)
    unload(plain)
    with pytest.raises(RuntimeError, match=r"^@unload handler already registered \(plain\)\. Only one"):
        unload(plain)


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf")])
def test_retry_delay_must_be_a_finite_number_of_seconds(delay: float) -> None:
    with pytest.raises(ValueError, match=r"it must be a finite number of seconds, 0 or more"):
        RetryableError("later", delay=delay)


def test_call_tells_everything_about_a_task() -> None:
    @task
    def handle(payload: Any, ctx: Any) -> Iterator[Any]:
        progress(0.5, "half")
        print("printed")
        print("oops", file=sys.stderr)
        log("logged", 1)
        yield ctx["model"]
        yield (1, 2)

    outcome = testing.call(handle, {"x": 1}, ctx={"model": "m"})
    assert outcome.succeeded
    assert outcome.result == outcome.outputs == ["m", [1, 2]]
    assert outcome.progress == [(0.5, "half")]
    assert outcome.logs == [("stdout", "printed"), ("stderr", "oops"), ("stdout", "logged 1")]


def test_call_reports_failures_as_the_worker_would_see_them() -> None:
    @task("named", retry_on=KeyError)
    def handle(payload: Any) -> Any:
        if payload == "later":
            raise RetryableError("busy", delay=3)
        return {}[payload]

    busy = testing.call("named", "later")
    assert (busy.error, busy.retry, busy.delay) == ("busy", True, 3)
    missing = testing.call(handle, "x")
    assert missing.retry
    assert missing.error is not None
    assert missing.error.endswith("KeyError: 'x'\n")
    with pytest.raises(LookupError, match=r"There is no handler for task 'other'\. Known tasks: 'named'\."):
        testing.call("other", 1)


def test_call_takes_functions_that_are_not_registered_and_sends_values_through_json() -> None:
    assert testing.call(plain, (1, 2)).result == [1, 2]
    with pytest.raises(runqy_python.errors.ResultEncodingError, match="at payload"):
        testing.call(plain, object())


def test_call_batch_goes_in_one_call_and_plain_handlers_one_by_one() -> None:
    @task(batch=8)
    def many(payloads: Any) -> Any:
        return [len(payloads) if payload else ValueError("empty") for payload in payloads]

    first, second = testing.call_batch(many, [1, 0])
    assert first.result == 2
    assert second.error == "ValueError: empty\n"
    assert [outcome.result for outcome in testing.call_batch(plain, [1, 2])] == [1, 2]


def test_call_runs_coroutines_and_cancelled_tasks() -> None:
    async def asked(payload: Any) -> Any:
        return cancelled()

    assert testing.call(asked, 1).result is False
    assert testing.call(asked, 1, cancelled=True).result is True


def test_load_runs_the_loader() -> None:
    assert testing.load() is None

    @load
    async def prepare() -> Any:
        return "model"

    assert testing.load() == "model"


def test_helpers_do_nothing_outside_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    progress(0.5)
    log("to", "stderr")
    assert cancelled() is False
    assert capsys.readouterr() == ("", "to stderr\n")


@pytest.mark.parametrize("value", [float("nan"), "much"])
def test_progress_wants_a_number(value: Any) -> None:
    with pytest.raises(ValueError, match=r"nan|could not convert"):
        progress(value)
