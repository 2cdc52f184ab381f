"""Reads queues: the one validator behind files, the API, the command line and the database."""

from __future__ import annotations

import json
from dataclasses import replace
from urllib.parse import urlsplit

from runqy.config.autoscale import read_autoscale
from runqy.config.deployment import KEYS as DEPLOYMENT_KEYS
from runqy.config.deployment import is_vault_entry, read_deployment
from runqy.config.fields import Field, FieldType, kind_of
from runqy.config.model import QueueConfig, Scheduling, SubQueue, Webhook
from runqy.config.wording import Wording
from runqy.settings.node import NOT_SET, Entries, Node, Position, Reading, Scalar, plain
from runqy.settings.queue_name import DEFAULT_SUB_QUEUE, name_problem
from runqy.settings.spelling import unknown_name

SHARED_KEYS = ("deployment", "input", "output", "description", "scheduling", "max_pending", "webhook", "redact")
"""keys that a queue has in files and in requests"""
QUEUE_KEYS = ("priority", "sub_queues", *SHARED_KEYS, "autoscale")
WITHOUT_EFFECT = ("env_vars", "provider")
_FIELD_KEYS = ("name", "type", "required", "default", "description")
MAX_PRIORITY = 2**31 - 1


def read_queue(name: str, node: Node, reading: Reading, where: Position | None) -> QueueConfig | None:
    """One queue of a file, its name at ``where``; None when it is refused, every problem goes to ``reading``."""
    before = len(reading.problems)
    wording = Wording(name)
    problem = name_problem(name)
    if problem is not None:
        reading.refuse(problem, where)
    entries = reading.entries(node, f"queue '{name}'")
    if entries is None:
        if len(reading.problems) == before:
            reading.refuse(f"{wording.prefix}deployment is required", where)
        return None
    _check_keys(entries, reading, wording)
    reader = QueueReader(entries, reading, wording)
    config = reader.shared(QueueConfig(name, reader.sub_queues()))
    if config.deployment is None and reader.is_empty("deployment"):
        reading.refuse(f"{wording.prefix}deployment is required", entries.where)
    autoscale = read_autoscale(reader.get("autoscale"), reading, f"{wording.prefix}autoscale")
    if autoscale is not None and config.deployment is not None:
        config = replace(config, deployment=replace(config.deployment, autoscale=autoscale))
    return config if len(reading.problems) == before else None


def _check_keys(entries: Entries, reading: Reading, wording: Wording) -> None:
    known = (*QUEUE_KEYS, *WITHOUT_EFFECT)
    for key in entries.entries:
        if key in WITHOUT_EFFECT:
            reading.warn(f"{wording.prefix}{key} has no effect", entries.place(key))
        elif key in known:
            continue
        elif key in DEPLOYMENT_KEYS:
            reading.refuse(
                f"{wording.prefix}key '{key}' belongs below 'deployment:' (check the indentation)", entries.place(key)
            )
        else:
            reading.refuse(f"{wording.prefix}{unknown_name('key', key, QUEUE_KEYS)}", entries.place(key))


class QueueReader:
    """The parts of one queue."""

    def __init__(self, node: Entries, reading: Reading, wording: Wording) -> None:
        self.node = node
        self.reading = reading
        self.wording = wording

    def get(self, key: str) -> Node:
        return self.node.entries.get(key, NOT_SET)

    def is_empty(self, key: str) -> bool:
        node = self.get(key)
        return isinstance(node, Scalar) and node.value is None

    def shared(self, config: QueueConfig) -> QueueConfig:
        """``config`` with everything that files and requests have in common."""
        deployment = self.reading.entries(self.get("deployment"), f"{self.wording.prefix}deployment")
        return replace(
            config,
            deployment=None if deployment is None else read_deployment(deployment, self.reading, self.wording),
            input=self.fields("input"),
            output=self.fields("output"),
            description=self.reading.text(self.get("description"), self._name("description")) or "",
            scheduling=self._scheduling(),
            max_pending=self._max_pending(),
            webhook=self._webhook(),
            redact=self._redact(),
        )

    def _name(self, key: str) -> str:
        return self.wording.prefix + key

    def _refuse(self, key: str, text: str) -> None:
        self.reading.refuse(f"{self._name(key)} {text}", self.get(key).where or self.node.place(key))

    def priority(self) -> int | None:
        """The queue's own priority; None when it is not given (0 counts as that) or refused."""
        value = self.reading.integer(self.get("priority"), self._name("priority"), "5")
        return self.checked_priority(value, self._name("priority"), self.get("priority"))

    def checked_priority(self, value: int | None, name: str, node: Node) -> int | None:
        if value is not None and not 0 <= value <= MAX_PRIORITY:
            self.reading.refuse(f"{name} must be from 1 to {MAX_PRIORITY}, got {value}", node.where)
            return None
        return value or None

    def sub_queues(self) -> tuple[SubQueue, ...]:
        """Listed sub-queues; where none are listed, one ``default`` with the queue's priority."""
        before = len(self.reading.problems)
        priority = self.priority()
        listed = list(self.reading.items(self.get("sub_queues"), self._name("sub_queues")))
        if not listed:
            if priority is None and len(self.reading.problems) == before:
                self.reading.refuse(f"{self.wording.prefix}either priority or sub_queues is required", self.node.where)
            return (SubQueue(DEFAULT_SUB_QUEUE, priority or 1),)
        subs: dict[str, SubQueue] = {}
        for index, item in listed:
            sub = self._sub_queue(f"{self.wording.prefix}sub_queues[{index}]", item)
            if sub is not None and sub.name in subs:
                self.reading.refuse(
                    f"{self.wording.prefix}sub_queues[{index}]: {sub.name!r} is listed twice", item.where
                )
            elif sub is not None:
                subs[sub.name] = sub
        return tuple(subs.values())

    def _sub_queue(self, name: str, node: Node) -> SubQueue | None:
        entries = self.reading.entries(node, name)
        if entries is None:
            if node == NOT_SET:
                self.reading.refuse(f"{name}.name is required", node.where)
            return None
        self.reading.known_keys(entries, ("name", "priority"), f"{name}.")
        before = len(self.reading.problems)
        text = self.reading.text(entries.entries.get("name", NOT_SET), f"{name}.name")
        if text is None and len(self.reading.problems) == before:
            self.reading.refuse(f"{name}.name is required", entries.where)
        problem = name_problem(text, is_sub=True) if text is not None else None
        if problem is not None:
            self.reading.refuse(f"{self.wording.prefix}{problem}", entries.place("name"))
        before = len(self.reading.problems)
        node = entries.entries.get("priority", NOT_SET)
        value = self.reading.integer(node, f"{name}.priority", "5")
        priority = self.checked_priority(value, f"{name}.priority", node)
        if priority is None and len(self.reading.problems) == before:
            self.reading.refuse(f"{name}.priority is required", entries.where)
        return SubQueue(text, priority) if text is not None and priority is not None and problem is None else None

    def fields(self, key: str) -> tuple[Field, ...]:
        """The schema of payload or result."""
        fields: dict[str, Field] = {}
        for index, item in self.reading.items(self.get(key), self._name(key)):
            field = self._field(f"{self._name(key)}[{index}]", item)
            if field is None:
                continue
            if field.name in fields:
                self.reading.refuse(f"{self._name(key)}[{index}]: {field.name!r} is listed twice", item.where)
            fields[field.name] = field
        return tuple(fields.values())

    def _field(self, name: str, node: Node) -> Field | None:
        entries = self.reading.entries(node, name)
        if entries is None:
            return None
        self.reading.known_keys(entries, _FIELD_KEYS, f"{name}.")
        text = self.reading.text(entries.entries.get("name", NOT_SET), f"{name}.name")
        if text is None:
            self.reading.refuse(f"{name}.name is required", entries.where)
            return None
        types = self._types(f"{name}.type", entries)
        required = self.reading.boolean(entries.entries.get("required", NOT_SET), f"{name}.required")
        description = self.reading.text(entries.entries.get("description", NOT_SET), f"{name}.description")
        default = self._default(f"{name}.default", entries.entries.get("default", NOT_SET), types)
        return Field(text, types, required is not False, default, description or "")

    def _types(self, name: str, entries: Entries) -> tuple[FieldType, ...]:
        given = entries.entries.get("type", NOT_SET)
        items = [(0, given)] if isinstance(given, Scalar) and given.value is not None else None
        types: list[FieldType] = []
        listed = items if items is not None else list(self.reading.items(given, name))
        if not listed:
            self.reading.refuse(f"{name} is required, one or more of {', '.join(FieldType)}", entries.where)
        for _, item in listed:
            word = self.reading.text(item, name)
            if word in list(FieldType):
                types.append(FieldType(word))
            elif word is not None:
                self.reading.refuse(f"{name}: {unknown_name('type', word, list(FieldType))}", item.where)
        return tuple(dict.fromkeys(types))

    def _default(self, name: str, node: Node, types: tuple[FieldType, ...]) -> str | None:
        value = plain(node)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer() and FieldType.INT in types:
            value = int(value)
        try:
            text = json.dumps(value, allow_nan=False)
            accepted, kind = kind_of(text)
        except (ValueError, OverflowError):
            self.reading.refuse(f"{name} holds a number that JSON can't hold", node.where)
            return None
        if types and accepted.isdisjoint(types):
            self.reading.refuse(f"{name} has type {kind}, expected one of: {', '.join(types)}", node.where)
        return text

    def _scheduling(self) -> Scheduling:
        text = self.reading.text(self.get("scheduling"), self._name("scheduling"))
        if text is None or text in list(Scheduling):
            return Scheduling(text or Scheduling.STRICT)
        self._refuse("scheduling", f"must be {' or '.join(Scheduling)}, got {text!r}")
        return Scheduling.STRICT

    def _max_pending(self) -> int | None:
        limit = self.reading.integer(self.get("max_pending"), self._name("max_pending"), "10000")
        if limit is not None and limit < 0:
            self._refuse("max_pending", f"must be >= 0 (0 means no limit), got {limit}")
        return limit or None

    def _webhook(self) -> Webhook | None:
        webhook = self.reading.entries(self.get("webhook"), self._name("webhook"))
        if webhook is None:
            return None
        prefix = self._name("webhook.")
        self.reading.known_keys(webhook, ("url", "secret"), prefix)
        url = self.reading.text(webhook.entries.get("url", NOT_SET), prefix + "url")
        secret = self.reading.text(webhook.entries.get("secret", NOT_SET), prefix + "secret")
        if url is None:
            self.reading.refuse(f"{prefix}url is required", webhook.where)
        elif not _is_web_address(url):
            self.reading.refuse(f"{prefix}url must begin with http:// or https:// and hold no password", webhook.where)
        if secret is not None and not is_vault_entry(secret):
            self.reading.refuse(f"{prefix}secret must be vault://<vault>/<key> (value not shown)", webhook.where)
        return Webhook(url or "", secret)

    def _redact(self) -> tuple[str, ...]:
        keys: list[str] = []
        for index, item in self.reading.items(self.get("redact"), self._name("redact")):
            key = self.reading.text(item, f"{self._name('redact')}[{index}]")
            if key is not None:
                keys.append(key)
        return tuple(dict.fromkeys(keys))


def _is_web_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.username is None
