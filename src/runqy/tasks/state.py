"""The states of a task and what may be done in each: data, and the only source for what is legal.

The scripts' tests, operator actions, HTTP routes, command line and dashboard derive from `ACTIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class State(StrEnum):
    """Where a task is. The values are asynq's own words and stand in the task's hash."""

    SCHEDULED = "scheduled"
    """accepted with a time that has not come"""
    PENDING = "pending"
    """waits in its queue for a worker"""
    ACTIVE = "active"
    """a worker holds it under a lease"""
    RETRY = "retry"
    """failed, and waits for its next attempt"""
    COMPLETED = "completed"
    """ended well; kept for ttl_completed"""
    ARCHIVED = "archived"
    """ended without success, the one terminal failure; kept for ttl_archived"""


TERMINAL = frozenset({State.COMPLETED, State.ARCHIVED})


class Action(StrEnum):
    """What can happen to a task. The first group is the system's, the second the operators'."""

    PICK_UP = "pick_up"
    EXPIRE = "expire"
    COMPLETE = "complete"
    RETRY = "retry"
    FAIL = "fail"
    GIVE_BACK = "give_back"
    FORWARD = "forward"
    PURGE = "purge"

    RUN = "run"
    CANCEL = "cancel"
    ARCHIVE = "archive"
    DELETE = "delete"


OPERATOR_ACTIONS = (Action.RUN, Action.CANCEL, Action.ARCHIVE, Action.DELETE)

GONE = None
"""Where `Action.PURGE` and `Action.DELETE` lead: the task is no more."""

ACTIONS: Mapping[State, Mapping[Action, State | None]] = MappingProxyType(
    {
        State.SCHEDULED: {
            Action.FORWARD: State.PENDING,
            Action.RUN: State.PENDING,
            Action.CANCEL: State.ARCHIVED,
            Action.ARCHIVE: State.ARCHIVED,
            Action.DELETE: GONE,
        },
        State.PENDING: {
            Action.PICK_UP: State.ACTIVE,
            Action.EXPIRE: State.ARCHIVED,
            Action.CANCEL: State.ARCHIVED,
            Action.ARCHIVE: State.ARCHIVED,
            Action.DELETE: GONE,
        },
        State.ACTIVE: {
            Action.COMPLETE: State.COMPLETED,
            Action.RETRY: State.RETRY,
            Action.FAIL: State.ARCHIVED,
            Action.GIVE_BACK: State.PENDING,
            Action.CANCEL: State.ARCHIVED,
        },
        State.RETRY: {
            Action.FORWARD: State.PENDING,
            Action.RUN: State.PENDING,
            Action.CANCEL: State.ARCHIVED,
            Action.ARCHIVE: State.ARCHIVED,
            Action.DELETE: GONE,
        },
        State.COMPLETED: {
            Action.PURGE: GONE,
            Action.RUN: State.PENDING,
            Action.DELETE: GONE,
        },
        State.ARCHIVED: {
            Action.PURGE: GONE,
            Action.RUN: State.PENDING,
            Action.DELETE: GONE,
        },
    }
)


def is_legal(state: State, action: Action) -> bool:
    """Whether the action may happen to a task in this state."""
    return action in ACTIONS[state]


def leads_to(state: State, action: Action) -> State | None:
    """The state after a legal action, or `GONE`. Raises KeyError for one that is not legal."""
    return ACTIONS[state][action]


def operator_actions(state: State) -> tuple[Action, ...]:
    """What an operator may do with a task in this state, in the order in which it is offered."""
    return tuple(action for action in OPERATOR_ACTIONS if is_legal(state, action))
