"""The one line that ends a task, laid out as `json.dumps` lays it out."""

from __future__ import annotations

import json

from .calls import Outcome
from .encoding import encode_text

_encode = json.JSONEncoder().encode


def reply_line(key: str, outcome: Outcome, with_delay: bool) -> str:
    """The reply for a task id given as JSON text. `with_delay` is for version 2 of the protocol."""
    if type(outcome) is str:
        return '{"task_id": ' + key + ', "result": ' + outcome + ', "error": null, "retry": false}\n'
    assert not isinstance(outcome, str)
    retry = "true" if outcome.retry else "false"
    delay = ""
    if with_delay and outcome.retry and outcome.delay is not None:
        delay = f', "delay": {_encode(outcome.delay)}'
    error = encode_text(outcome.error)
    return f'{{"task_id": {key}, "result": null, "error": {error}, "retry": {retry}{delay}}}\n'
