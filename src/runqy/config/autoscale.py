"""Reads ``autoscale``: validated and stored, not acted upon in this release (product decision 35)."""

from __future__ import annotations

import json
import re

from runqy.config.model import Autoscale
from runqy.settings.node import NOT_SET, Entries, Node, Reading, Scalar, plain
from runqy.settings.spelling import unknown_name
from runqy.tasks.limits import LimitError, parse_setting_duration

_KEYS = (
    "enabled",
    "provider",
    "min_workers",
    "max_workers",
    "poll_interval",
    "scale_up",
    "scale_down",
    "instance",
)
_INSTANCE_KEYS = ("gpu", "image", "disk_gb", "max_price_per_hour")
_UP = ("no_workers", "queue_depth", "schedule", "latency", "cost_budget")
_DOWN = ("idle", "schedule", "latency", "cost_budget")
_CRON_FIELD = re.compile(r"[0-9A-Za-z*/,\-?#]+", re.ASCII)


def read_autoscale(node: Node, reading: Reading, name: str) -> Autoscale | None:
    """The queue's wish for rented machines, None when absent or refused. A disabled one is not validated."""
    autoscale = reading.entries(node, name)
    if autoscale is None:
        return None
    enabled = reading.boolean(autoscale.entries.get("enabled", NOT_SET), f"{name}.enabled") or False
    if enabled:
        _AutoscaleReader(autoscale, reading, name).check()
    return Autoscale(enabled, json.dumps(plain(autoscale), ensure_ascii=False, separators=(",", ":")))


class _AutoscaleReader:
    def __init__(self, node: Entries, reading: Reading, name: str) -> None:
        self.node = node
        self.reading = reading
        self.name = name

    def check(self) -> None:
        self.reading.known_keys(self.node, _KEYS, f"{self.name}.")
        if self.reading.text(self._get("provider"), f"{self.name}.provider") is None:
            self.reading.refuse(f"{self.name}.provider is required", self.node.where)
        least = self._count("min_workers", 0) or 0
        most = self._count("max_workers", 1)
        if most is None and "max_workers" not in self.node.entries:
            self.reading.refuse(f"{self.name}.max_workers is required", self.node.where)
        if most is not None and most < least:
            self.reading.refuse(f"{self.name}.max_workers must be >= min_workers", self.node.place("max_workers"))
        self._duration(self._get("poll_interval"), f"{self.name}.poll_interval")
        self._triggers("scale_up", _UP)
        self._triggers("scale_down", _DOWN)
        instance = self.reading.entries(self._get("instance"), f"{self.name}.instance")
        if instance is not None:
            self.reading.known_keys(instance, _INSTANCE_KEYS, f"{self.name}.instance.")

    def _get(self, key: str) -> Node:
        return self.node.entries.get(key, NOT_SET)

    def _count(self, key: str, least: int) -> int | None:
        count = self.reading.integer(self._get(key), f"{self.name}.{key}", "1")
        if count is not None and count < least:
            self.reading.refuse(f"{self.name}.{key} must be >= {least}, got {count}", self.node.place(key))
        return count

    def _duration(self, node: Node, name: str) -> None:
        if isinstance(node, Scalar) and (node.value is None or node.value == ""):
            return
        try:
            parse_setting_duration(plain(node), name)
        except LimitError as error:
            self.reading.refuse(str(error), node.where)

    def _triggers(self, key: str, known: tuple[str, ...]) -> None:
        for index, item in self.reading.items(self._get(key), f"{self.name}.{key}"):
            name = f"{self.name}.{key}[{index}]"
            trigger = self.reading.entries(item, name)
            if trigger is None:
                continue
            kind = self.reading.text(trigger.entries.get("type", NOT_SET), f"{name}.type")
            if kind not in known:
                self.reading.refuse(f"{name}: {unknown_name('trigger', kind or '', known)}", item.where)
                continue
            self._trigger(kind, trigger, name)

    def _trigger(self, kind: str, trigger: Entries, name: str) -> None:
        if kind == "queue_depth":
            self._positive(trigger, "threshold", name)
        elif kind == "idle":
            self._duration(trigger.entries.get("timeout", NOT_SET), f"{name}.timeout")
        elif kind == "schedule":
            cron = self.reading.text(trigger.entries.get("cron", NOT_SET), f"{name}.cron") or ""
            fields = cron.split()
            if len(fields) != 5 or not all(_CRON_FIELD.fullmatch(field) for field in fields):
                self.reading.refuse(f"{name}.cron must have five fields such as '0 8 * * 1-5'", trigger.where)
            if "scale_up" in name:
                self._positive(trigger, "workers", name)

    def _positive(self, trigger: Entries, key: str, name: str) -> None:
        count = self.reading.integer(trigger.entries.get(key, NOT_SET), f"{name}.{key}", "10")
        if count is None or count <= 0:
            self.reading.refuse(f"{name}.{key} must be > 0", trigger.place(key))
