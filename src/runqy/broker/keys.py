"""Every key and channel that runqy uses in Redis, one function each.

The layout is asynq's: the braces around the queue's name keep all keys of one queue in one cluster slot.
``q`` is always the full name, ``parent.sub``.
"""

from __future__ import annotations

from runqy.tasks.state import State

QUEUES = "asynq:queues"
"""set of full queue names"""

WORKERS = "asynq:workers"
"""sorted set of worker ids, scored by the time at which asynq's tools stop listing them"""

CONFIG_VERSION = "runqy:config:version"
"""counter, raised with every change of the configuration; heartbeats read it"""

WAKE_CHANNEL = "runqy:wake"
"""message: name of a queue whose pending list was empty and now is not, or that was resumed"""

CONTROL_CHANNEL = "runqy:control"
"""message: JSON order to workers (restart, drain, configuration changed)"""

CANCEL_CHANNEL = "asynq:cancel"
"""message: id of a task that must stop (asynq's own channel)"""


def prefix(q: str) -> str:
    """What all keys of a queue begin with."""
    return f"asynq:{{{q}}}:"


def task_prefix(q: str) -> str:
    """A task's hash without its id: scripts append ids that they learn while they run."""
    return f"asynq:{{{q}}}:t:"


def task(q: str, task_id: str) -> str:
    """hash: the task"""
    return task_prefix(q) + task_id


def log_prefix(q: str) -> str:
    """A task's output without its id."""
    return f"asynq:{{{q}}}:log:"


def log(q: str, task_id: str) -> str:
    """string: the last 64 KiB of what the task printed; lives as long as the task's hash"""
    return log_prefix(q) + task_id


def pending(q: str) -> str:
    """list of ids; new ones enter at the left, the oldest leaves at the right"""
    return prefix(q) + "pending"


def active(q: str) -> str:
    """list of ids that workers hold"""
    return prefix(q) + "active"


def lease(q: str) -> str:
    """sorted set: active ids by the second at which their lease ends"""
    return prefix(q) + "lease"


def scheduled(q: str) -> str:
    """sorted set: ids by the second at which they become pending"""
    return prefix(q) + "scheduled"


def retry(q: str) -> str:
    """sorted set: ids by the second of their next attempt"""
    return prefix(q) + "retry"


def completed(q: str) -> str:
    """sorted set: ids by the second at which they expire"""
    return prefix(q) + "completed"


def archived(q: str) -> str:
    """sorted set: ids by the second at which they expire"""
    return prefix(q) + "archived"


def container(q: str, state: State) -> str:
    """The list or sorted set that holds the ids of the tasks in one state."""
    return prefix(q) + state.value


def holes(q: str) -> str:
    """string: how many entries of a long pending list are blank, left by tasks that were taken out"""
    return prefix(q) + "holes"


def paused(q: str) -> str:
    """string: unix time of the pause; its presence pauses the queue"""
    return prefix(q) + "paused"


def processed(q: str) -> str:
    """string: attempts that ended, since the beginning; `:YYYY-MM-DD` is appended for one day (UTC)"""
    return prefix(q) + "processed"


def failed(q: str) -> str:
    """string: those of `processed` that were not a success; `:YYYY-MM-DD` is appended for one day (UTC)"""
    return prefix(q) + "failed"


def history(q: str) -> str:
    """hash prefix: `:m:<hour>` has one field per minute, `:h:<day>` one per hour (unix hour and day numbers)"""
    return prefix(q) + "history"


def once_prefix(q: str) -> str:
    """A record of a used idempotency key without its digest."""
    return prefix(q) + "once:"


def once(q: str, digest: str) -> str:
    """string: id, body hash and unix time of the enqueue that used this idempotency key"""
    return once_prefix(q) + digest


def webhooks(q: str) -> str:
    """sorted set: ids of ended tasks whose webhook is not delivered, by the second of the next try"""
    return prefix(q) + "webhooks"


def webhook_records(q: str) -> str:
    """hash: by id what is sent and how often it was tried, after the first failure"""
    return prefix(q) + "webhooks:records"


def webhook_history(q: str) -> str:
    """list of JSON lines: the last tries to send a webhook of this queue, newest first"""
    return prefix(q) + "webhooks:history"


def reverse(task_id: str) -> str:
    """hash with the field `queue`: finds a task by its id alone; in no queue's slot"""
    return "asynq:t:" + task_id


def worker(worker_id: str) -> str:
    """hash: the record of one worker process"""
    return f"asynq:workers:{worker_id}"


def worker_log(worker_id: str) -> str:
    """list of JSON lines: what the worker's task processes printed"""
    return worker(worker_id) + ":logs"


def events_channel(q: str) -> str:
    """channel: states that tasks of this queue reached, one message per script call"""
    return f"runqy:events:{q}"


EVENTS_PATTERN = "runqy:events:*"


def progress_channel(task_id: str) -> str:
    """channel: progress, log lines and output pieces of one task"""
    return f"runqy:task:{task_id}"


def queue_of_events_channel(channel: str) -> str:
    """The queue whose tasks an events channel tells about."""
    return channel.removeprefix("runqy:events:")
