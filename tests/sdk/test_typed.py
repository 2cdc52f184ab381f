"""Typed payloads: what is converted, what is refused and with which words."""

from __future__ import annotations

import datetime
import decimal
import enum
import pathlib
import uuid
from dataclasses import dataclass, field
from typing import Any, Literal, NewType, NotRequired, Optional, TypedDict, Union

import pytest
import runqy_python
from pydantic import BaseModel, Field
from runqy_python import testing
from runqy_python.decorator import _reset
from runqy_python.handlers import DEFAULT_TASK, Handler
from runqy_python.typed import payload_converter

UserId = NewType("UserId", int)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: float
    y: float = 0.0

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x must not be negative")


@dataclass
class Everything:
    points: list[Point]
    color: Color = Color.RED
    when: Optional[datetime.datetime] = None  # noqa: UP045
    day: datetime.date = datetime.date(2000, 1, 1)
    price: decimal.Decimal = decimal.Decimal(0)
    id: Optional[uuid.UUID] = None  # noqa: UP045
    data: bytes = b""
    path: pathlib.Path = pathlib.Path()
    mode: Literal["fast", "slow"] = "fast"
    pair: tuple[int, str] = (0, "")
    many: tuple[int, ...] = ()
    tags: set[str] = field(default_factory=set)
    by_number: dict[int, str] = field(default_factory=dict)
    either: Union[int, str] = 0  # noqa: UP007
    user: UserId = UserId(0)
    anything: Any = None
    nothing: int | None = None
    derived: str = field(default="", init=False)


class Request(TypedDict):
    text: str
    limit: NotRequired[int]
    points: NotRequired[list[Point]]


class Model(BaseModel):
    name: str
    sizes: list[int] = Field(default_factory=list)


def converted(annotation: Any, payload: Any) -> Any:
    def handle(payload: Any) -> Any: ...

    handle.__annotations__["payload"] = annotation
    convert = payload_converter(Handler(DEFAULT_TASK, handle))
    assert convert is not None
    return convert(payload)


def refusal(annotation: Any, payload: Any) -> str:
    with pytest.raises(Exception, match=r"^Invalid payload: ") as caught:
        converted(annotation, payload)
    return str(caught.value).removeprefix("Invalid payload: ")


def test_dataclass_with_every_kind_of_field() -> None:
    made = converted(
        Everything,
        {
            "points": [{"x": 1}, {"x": 2.5, "y": 3}],
            "color": "blue",
            "when": "2024-01-02T03:04:05Z",
            "day": "2024-01-02",
            "price": "1.10",
            "id": "00000000-0000-0000-0000-000000000001",
            "data": "YWJj",
            "path": "/tmp/x",
            "mode": "slow",
            "pair": [1, "a"],
            "many": [1, 2, 3],
            "tags": ["a", "a", "b"],
            "by_number": {"1": "one"},
            "either": "text",
            "user": 7,
            "anything": [1],
            "nothing": None,
            "unknown": "is left out",
        },
    )
    assert made == Everything(
        points=[Point(1.0), Point(2.5, 3.0)],
        color=Color.BLUE,
        when=datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
        day=datetime.date(2024, 1, 2),
        price=decimal.Decimal("1.10"),
        id=uuid.UUID(int=1),
        data=b"abc",
        path=pathlib.Path("/tmp/x"),
        mode="slow",
        pair=(1, "a"),
        many=(1, 2, 3),
        tags={"a", "b"},
        by_number={1: "one"},
        either="text",
        user=UserId(7),
        anything=[1],
    )
    assert isinstance(made.points[0].x, float)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"points": None}, "points: expected an array, got null"),
        ({"points": [{"x": 1}, {"y": 2}]}, "points[1].x: missing"),
        ({"points": [{"x": "1"}]}, "points[0].x: expected float, got '1'"),
        ({"points": [{"x": True}]}, "points[0].x: expected float, got true"),
        ({"points": [{"x": -1}]}, "points[0]: ValueError: x must not be negative"),
        ({"points": [3]}, "points[0]: expected an object for Point, got 3"),
        ({"color": "green"}, "color: expected one of 'red', 'blue', got 'green'"),
        ({"when": "yesterday"}, "when: expected a date and time as ISO 8601 text, got 'yesterday'"),
        ({"day": 5}, "day: expected a date as ISO 8601 text, got 5"),
        ({"price": "x"}, "price: expected a decimal number as text, got 'x'"),
        ({"id": "x"}, "id: expected a UUID as text, got 'x'"),
        ({"data": "?"}, "data: expected base64 text, got '?'"),
        ({"mode": "medium"}, "mode: expected one of 'fast', 'slow', got 'medium'"),
        ({"pair": [1]}, "pair: expected 2 entries, got 1"),
        ({"pair": [1, 2]}, "pair[1]: expected str, got 2"),
        ({"many": [1, "x"]}, "many[1]: expected int, got 'x'"),
        ({"tags": "a"}, "tags: expected an array, got 'a'"),
        ({"by_number": {"one": "x"}}, "by_number['one']: expected a whole number as the key"),
        ({"either": 1.5}, "either: expected int or str, got 1.5"),
        ({"user": "x"}, "user: expected int, got 'x'"),
        ({"nothing": "x" * 100}, "nothing: expected int, got 'xxx"),
    ],
)
def test_problem_names_the_field(change: dict[str, Any], problem: str) -> None:
    assert refusal(Everything, {"points": [], **change}).startswith(problem)


def test_all_problems_are_told_at_once() -> None:
    assert refusal(Everything, {"color": 1, "mode": 2}) == (
        "points: missing; color: expected one of 'red', 'blue', got 1; mode: expected one of 'fast', 'slow', got 2"
    )
    assert refusal(list[Point], [{}] * 30).endswith("[19].x: missing; and 10 more")


def test_typed_dict_stays_a_dictionary_with_checked_values() -> None:
    assert converted(Request, {"text": "a", "more": 1}) == {"text": "a", "more": 1}
    assert converted(Request, {"text": "a", "points": [{"x": 1}]})["points"] == [Point(1.0)]
    assert refusal(Request, {"limit": "x"}) == "text: missing; limit: expected int, got 'x'"
    assert refusal(Request, [1]) == "expected an object for Request, got an array"


def test_pydantic_model_names_the_field_too() -> None:
    assert converted(Model, {"name": "a", "sizes": [1]}) == Model(name="a", sizes=[1])
    problem = refusal(Model, {"sizes": [1, "x"]})
    assert "name: Field required" in problem
    assert "sizes[1]: Input should be a valid integer" in problem


def test_models_inside_other_types() -> None:
    assert converted(Optional[Point], None) is None  # noqa: UP045
    assert converted(Optional[Point], {"x": 1}) == Point(1.0)  # noqa: UP045
    assert converted(dict[str, Point], {"a": {"x": 1}}) == {"a": Point(1.0)}


@pytest.mark.parametrize("annotation", [dict, dict[str, Any], str, int, Any, None, list[int], "Missing", object])
def test_other_annotations_leave_the_payload_alone(annotation: Any) -> None:
    def handle(payload: Any) -> Any: ...

    handle.__annotations__["payload"] = annotation
    assert payload_converter(Handler(DEFAULT_TASK, handle)) is None


def test_plain_task_with_a_typed_dict_takes_what_comes_as_before() -> None:
    _reset()
    try:

        @runqy_python.task
        def bare(payload: Request) -> Any:
            return payload

        @runqy_python.task("named")
        def named(payload: Request) -> Any:
            return payload

        assert testing.call(bare, {"no": "text"}).result == {"no": "text"}
        assert testing.call(named, {"no": "text"}).error == "Invalid payload: text: missing"
    finally:
        _reset()


def test_bad_payload_is_a_permanent_failure_without_a_traceback() -> None:
    def handle(point: Point) -> Any: ...

    outcome = testing.call(handle, {"y": 1})
    assert (outcome.error, outcome.retry) == ("Invalid payload: x: missing", False)
