"""A queue as JSON and back: the form of the API and of the database (keys as in the original)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from runqy.config.deployment import read_deployment
from runqy.config.fields import Field
from runqy.config.model import Deployment, Mode, QueueConfig, Scheduling, SubQueue
from runqy.config.validation import SHARED_KEYS, QueueReader
from runqy.config.wording import Wording
from runqy.settings.node import Entries, Reading, node_of
from runqy.tasks.limits import LEVERS, Override
from runqy.tasks.retry import DEFAULT_RETRY_POLICY, RetryPolicy
from runqy.timing import NANOSECONDS_PER_SECOND, format_duration

JsonObject = dict[str, Any]


def deployment_document(deployment: Deployment) -> JsonObject:
    """The deployment's JSON form; keys that have their default and are optional in the original are left out."""
    document: JsonObject = {"git_url": deployment.git_url, "branch": deployment.branch}
    if deployment.path:
        document["path"] = deployment.path
    if deployment.code_path:
        document["code_path"] = deployment.code_path
    document["startup_cmd"] = deployment.startup_cmd
    if deployment.mode is not Mode.LONG_RUNNING:
        document["mode"] = deployment.mode.value
    document["startup_timeout_secs"] = deployment.startup_timeout_secs
    if deployment.redis_storage is not None:
        document["redis_storage"] = deployment.redis_storage
    if deployment.vaults:
        document["vaults"] = list(deployment.vaults)
    if deployment.git_token:
        document["git_token"] = deployment.git_token
    if deployment.limits != Override():
        document["limits"] = limits_document(deployment.limits)
    if deployment.retry != DEFAULT_RETRY_POLICY:
        document["retry"] = retry_document(deployment.retry)
    if deployment.prestart:
        document["prestart"] = True
    if deployment.autoscale is not None:
        document["autoscale"] = json.loads(deployment.autoscale.document)
    return document


def limits_document(limits: Override) -> JsonObject:
    """The levers that are set: ``max_retry`` as a number, the others as Go durations (``1h``, ``0``)."""
    document: JsonObject = {}
    for lever in LEVERS:
        value = getattr(limits, lever.name)
        if value is not None:
            document[lever.name] = duration_text(value) if lever.is_duration else value
    return document


def retry_document(retry: RetryPolicy) -> JsonObject:
    return {
        "delay": duration_text(retry.delay),
        "backoff": retry.backoff.value,
        "max_delay": duration_text(retry.max_delay),
        "jitter": retry.jitter,
    }


def duration_text(seconds: float) -> str:
    """A duration as a person writes it: ``1h30m`` rather than ``1h30m0s``."""
    text = format_duration(round(seconds * NANOSECONDS_PER_SECOND))
    if text == "0s":
        return "0"
    if text.endswith("m0s"):
        text = text.removesuffix("0s")
    return text.removesuffix("0m") if text.endswith("h0m") else text


def fields_document(fields: Sequence[Field]) -> list[JsonObject]:
    """A schema's JSON form."""
    document = []
    for field in fields:
        entry: JsonObject = {"name": field.name, "type": list(field.types), "required": field.required}
        if field.default is not None:
            entry["default"] = json.loads(field.default)
        if field.description:
            entry["description"] = field.description
        document.append(entry)
    return document


def options_document(config: QueueConfig) -> JsonObject:
    """What a parent queue says beyond the original's columns."""
    document: JsonObject = {}
    if config.scheduling is not Scheduling.STRICT:
        document["scheduling"] = config.scheduling.value
    if config.max_pending is not None:
        document["max_pending"] = config.max_pending
    if config.webhook is not None:
        document["webhook"] = {"url": config.webhook.url}
        if config.webhook.secret is not None:
            document["webhook"]["secret"] = config.webhook.secret
    if config.redact:
        document["redact"] = list(config.redact)
    return document


def queue_document(config: QueueConfig) -> JsonObject:
    """The whole parent queue: what history and ``config plan`` compare, and what YAML would say."""
    document: JsonObject = {
        "name": config.name,
        "enabled": config.enabled,
        "sub_queues": [
            {"name": sub.name, "priority": sub.priority} | ({} if sub.enabled else {"enabled": False})
            for sub in config.sub_queues
        ],
    }
    if config.deployment is not None:
        document["deployment"] = deployment_document(config.deployment)
    if config.input:
        document["input"] = fields_document(config.input)
    if config.output:
        document["output"] = fields_document(config.output)
    if config.description:
        document["description"] = config.description
    return document | options_document(config)


def queue_request_document(config: QueueConfig) -> JsonObject:
    """The body of ``POST /workers/queues`` that makes the stored parent exactly this; null clears what is not set."""
    document = queue_document(config)
    del document["enabled"]
    return dict.fromkeys((key for key in SHARED_KEYS if key != "deployment"), None) | document


def sub_queue_document(config: QueueConfig, sub: SubQueue, shown_name: str) -> JsonObject:
    """The answer of the original's queue routes: one sub-queue with its parent's deployment (http-api §6)."""
    document: JsonObject = {"name": shown_name, "priority": sub.priority}
    if config.deployment is not None:
        document["deployment"] = deployment_document(config.deployment)
    document |= options_document(config)
    document["created_at"] = int(config.created_at or 0)
    document["updated_at"] = int(config.updated_at or 0)
    return document


def stored_queue(
    config: QueueConfig, deployment: object, input: object, output: object, options: Mapping[str, Any], reading: Reading
) -> QueueConfig | None:
    """``config`` with what the database holds beside it; None when that can't be read (see ``reading``)."""
    before = len(reading.problems)
    try:
        node = node_of({**options, "input": input, "output": output, "deployment": deployment})
    except TypeError as error:
        reading.refuse(str(error), None)
        return None
    assert isinstance(node, Entries)
    read = QueueReader(node, reading, Wording(config.name)).shared(config)
    return read if len(reading.problems) == before else None


def read_deployment_document(document: Mapping[str, Any], reading: Reading) -> Deployment | None:
    """A deployment from its JSON form, validated as everywhere."""
    node = node_of(document)
    return read_deployment(node, reading, Wording(None)) if isinstance(node, Entries) else None
