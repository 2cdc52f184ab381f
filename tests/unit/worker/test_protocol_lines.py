"""The worker's half of the line protocol, against lines recorded from the original and against rubbish."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runqy.tasks.limits import Limits
from runqy.tasks.message import PickedTask
from runqy.tasks.outcome import Ending, Failure, Success
from runqy.tasks.retry import DEFAULT_RETRY_POLICY
from runqy.worker.protocol import (
    LineSplitter,
    Noise,
    OutputPiece,
    Progress,
    Ready,
    Recalled,
    Reply,
    Said,
    Started,
    StartFailed,
    TaskLog,
    cancel_line,
    read_line,
    recall_line,
    request_line,
)
from runqy.worker.runtime import outcome_of

REQUESTS = [
    rb'{"task_id":"c76f2165-52e0-440a-8de9-2c00e6fabdee","type":"echo.default","payload":{"msg":"hi"},"retry_count":0,"max_retry":3,"queue":"echo.default"}',
    rb'{"task_id":"3bb6c077-4df6-455c-aafe-01505b26233a","type":"echo.default","payload":null,"retry_count":1,"max_retry":3,"queue":"echo.default"}',
    rb'{"task_id":"ac2d1778-58ec-4dc9-b7e5-1bf43f29441b","type":"echo.default","payload":[1,2],"retry_count":0,"max_retry":3,"queue":"echo.default"}',
    rb'{"task_id":"1ce9bda0-4f06-4fd2-a8fb-5b3c6ab74229","type":"echo.default","payload":{"timeout":9,"data":{"a":3}},"retry_count":0,"max_retry":3,"queue":"echo.default"}',
    rb'{"task_id":"df065449-8374-42ef-a6e9-933b888a4d0f","type":"one.high","payload":{"n":1,"sleep":6},"retry_count":2,"max_retry":3,"queue":"one.high"}',
    rb'{"task_id":"2f31d2ac-e193-43a6-8184-e9393f25a1a5","type":"echo.default","payload":{"fail":"perm"},"retry_count":0,"max_retry":0,"queue":"echo.default"}',
]
REPLIES = [
    (
        rb'{"task_id": "c76f2165-52e0-440a-8de9-2c00e6fabdee", "result": {"echo": {"msg": "hi"}, "calls": 1}, "error": null, "retry": false}',  # noqa: E501
        Success(b'{"echo": {"msg": "hi"}, "calls": 1}'),
    ),
    (
        rb'{"task_id": "605c4cb3-12c8-47e3-bd28-b60b75b963ce", "result": null, "error": "try again", "retry": true}',
        Failure(Ending.ERROR, "try again", retriable=True),
    ),
    (
        rb"""{"task_id": "3bb6c077-4df6-455c-aafe-01505b26233a", "result": null, "error": "Traceback (most recent call last):\n  (frames cut)\nAttributeError: 'NoneType' object has no attribute 'get'", "retry": false}""",  # noqa: E501
        Failure(
            Ending.FAILED,
            "permanent failure: Traceback (most recent call last):\n  (frames cut)\n"
            "AttributeError: 'NoneType' object has no attribute 'get'",
            retriable=False,
        ),
    ),
    (
        rb'{"task_id": "d67c85be-d1e5-4e53-9479-40a5c5d339d9", "result": {"double": "xx"}, "error": null, "retry": false}',  # noqa: E501
        Success(b'{"double": "xx"}'),
    ),
]


def picked(recorded: bytes, **changes: object) -> PickedTask:
    """The task whose request the original wrote like this."""
    line = json.loads(recorded)
    payload = recorded[recorded.index(b'"payload":') + 10 : recorded.rindex(b',"retry_count"')]
    values: dict[str, object] = {
        "id": line["task_id"],
        "queue": line["queue"],
        "type": line["type"],
        "payload": payload,
        "limits": Limits(max_retry=line["max_retry"]),
        "retried": line["retry_count"],
        "attempt": line["retry_count"] + 1,
        "retry_policy": DEFAULT_RETRY_POLICY,
        "token": "host:1:aaaaaa#1",
        "wait": 0.0,
    }
    return PickedTask(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("recorded", REQUESTS)
def test_a_request_is_written_byte_for_byte_as_the_original_does(recorded: bytes) -> None:
    assert request_line(picked(recorded), 1) == recorded + b"\n"


@pytest.mark.parametrize("recorded", REQUESTS)
def test_protocol_2_adds_attempt_and_task_at_the_end(recorded: bytes) -> None:
    line = json.loads(request_line(picked(recorded), 2))
    assert line == {**json.loads(recorded), "attempt": line["retry_count"] + 1}
    named = json.loads(request_line(picked(recorded, handler="embed"), 2))
    assert named["task"] == "embed"
    assert named["type"] == json.loads(recorded)["type"]


@pytest.mark.parametrize(("recorded", "outcome"), REPLIES)
def test_a_recorded_reply_is_read_and_its_result_kept_verbatim(recorded: bytes, outcome: Success | Failure) -> None:
    said = read_line(recorded)
    assert isinstance(said, Reply)
    assert outcome_of(said, True) == outcome


def test_the_recorded_ready_line_is_protocol_1() -> None:
    assert read_line(b'{"status": "ready"}') == Ready()


@pytest.mark.parametrize("payload", [b"not json", b"", b"{", b"\xff\xfe", b"[1,2", b'{"a":NaN}'])
def test_a_payload_that_is_not_json_becomes_null(payload: bytes) -> None:
    assert json.loads(request_line(picked(REQUESTS[0], payload=payload), 1))["payload"] is None


@pytest.mark.parametrize("payload", [b'{\n "a": 1,\r\n "b": [\n2]}', b' {"a":"x\\ny"}\n', '"é\u2028"'.encode()])
def test_a_request_is_one_line_whatever_the_payload_looks_like(payload: bytes) -> None:
    line = request_line(picked(REQUESTS[0], payload=payload), 1)
    assert line.count(b"\n") == 1
    assert b"\r" not in line
    assert json.loads(line)["payload"] == json.loads(payload)


LINES: list[tuple[bytes, object]] = [
    (b"", None),
    (b"  \t ", None),
    (b"plain text", Noise("plain text")),
    (b'{"loss": 0.1}', Noise('{"loss": 0.1}')),
    (b"[1, 2]", Noise("[1, 2]")),
    (b"12", Noise("12")),
    (b"null", Noise("null")),
    (b"\xff\xfe\x00", Noise("��\x00")),
    (b'{"status":"busy"}', Noise('{"status":"busy"}')),
    (b'{"status":"error","error":"no GPU"}', StartFailed("no GPU")),
    (b'{"status":"error"}', StartFailed("it gave no reason")),
    (b'{"status":"ready","protocol":1,"capacity":9}', Ready()),
    (
        b'{"status":"ready","protocol":2,"sdk":"x/1","capacity":4,"tasks":["a"],"new":1}',
        Ready(2, 4, "x/1", ("a",)),
    ),
    (b'{"status":"ready","protocol":2,"capacity":"many","tasks":7}', Ready(2, 1)),
    (b'{"status":"ready","protocol":2,"capacity":-1}', Ready(2, 1)),
    (b'{"event":"start","task_id":"t"}', Started("t")),
    (b'{"event":"progress","task_id":"t","fraction":0.5,"message":"m"}', Progress("t", 0.5, "m")),
    (b'{"event":"progress","task_id":"t","fraction":"?"}', Progress("t", None, "")),
    (b'{"event":"log","task_id":"t","stream":"stderr","text":"x"}', TaskLog("t", "stderr", "x")),
    (b'{"event":"output","task_id":"t","seq":2,"data":{"a":[1]}}', OutputPiece("t", 2, b'{"a":[1]}')),
    (b'{"event":"recalled","task_id":"t"}', Recalled("t")),
    (b'{"event":"unheard"}', Noise('{"event":"unheard"}')),
    (b'{"task_id":"t","result":1}', Reply("t", b"1", "", False)),
    (b'{"task_id":"t"}', Reply("t", b"null", "", False)),
    (b'{"task_id":"t","error":"","retry":true}', Reply("t", b"null", "", True)),
    (b'{"task_id":"t","error":{"code":5}}', Reply("t", b"null", '{"code":5}', False)),
    (b'{"task_id":"t","error":"e","retry":"true","delay":-1}', Reply("t", b"null", "e", False)),
    (b'{"task_id":"t","error":"e","retry":true,"delay":2.5}', Reply("t", b"null", "e", True, 2.5)),
    (b'{"task_id":"t","error":"e","retry":true,"delay":true}', Reply("t", b"null", "e", True)),
]


@pytest.mark.parametrize(("line", "said"), LINES)
def test_each_line_is_read_as_what_it_is(line: bytes, said: object) -> None:
    assert read_line(line) == said


@given(st.binary(max_size=200))
def test_no_line_ever_breaks_the_reader(line: bytes) -> None:
    said = read_line(line)
    assert isinstance(said, Said) if line.strip() else said is None


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_KEYS = ["task_id", "status", "event", "result", "error", "retry", "delay", "protocol", "capacity", "seq", "fraction"]
_WORDS = st.sampled_from(["ready", "error", "start", "progress", "log", "output", "recalled", "t"])


@given(st.dictionaries(st.sampled_from(_KEYS), _JSON | _WORDS))
def test_no_odd_value_in_a_known_key_breaks_the_reader(line: dict[str, object]) -> None:
    assert isinstance(read_line(json.dumps(line).encode()), Said)


@given(st.lists(st.binary(max_size=30)), st.data())
def test_lines_come_out_whole_however_the_chunks_fall(lines: list[bytes], data: st.DataObject) -> None:
    lines = [line.replace(b"\n", b"") for line in lines]
    stream = b"".join(line + b"\n" for line in lines) + b"rest"
    splitter, read = LineSplitter(1000), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        read += splitter.feed(stream[:size])
        stream = stream[size:]
    assert read == [(line, False) for line in lines]
    assert splitter.flush() == b"rest"


def test_a_line_over_the_limit_is_cut_once_and_the_stream_stays_in_step() -> None:
    splitter = LineSplitter(10)
    read = [line for _ in range(5) for line in splitter.feed(b"x" * 7)]
    assert read == [(b"x" * 10, True)]
    assert splitter.feed(b"tail\nnext\n") == [(b"next", False)]


def test_the_lines_to_the_child_are_the_protocols() -> None:
    assert recall_line("t") == b'{"event":"recall","task_id":"t"}\n'
    assert cancel_line("t") == b'{"event":"cancel","task_id":"t"}\n'
