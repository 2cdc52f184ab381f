"""What an attempt came to, and what follows from it. Pure: no clock, no I/O, no randomness of its own."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from runqy.tasks.retry import RetryPolicy

MAX_FREE_LOSSES = 3
"""How often in a row a task that was only held ahead may lose its worker without being charged a retry.

A poison task that kills its worker before its start is reported would otherwise hide behind the mark."""


class Ending(StrEnum):
    """How one attempt ended; the word that stands in the task's history of attempts."""

    COMPLETED = "completed"
    FAILED = "failed"
    """the task code reported an error that is not to be retried"""
    ERROR = "error"
    """the task code reported an error that is to be retried"""
    TIMEOUT = "timeout"
    """over its active_timeout"""
    CRASHED = "crashed"
    """its process ended, or was restarted because of a neighbour"""
    LOST = "lost"
    """its worker stopped renewing the lease"""
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """over its pending_timeout, never started"""


@dataclass(frozen=True, slots=True)
class Success:
    """The task code answered with a result: JSON text, or None where the queue keeps no results."""

    result: bytes | None


@dataclass(frozen=True, slots=True)
class Failure:
    """The attempt ended without success.

    ``delay`` in seconds replaces the retry policy's for this one retry (the task code may ask for it).
    """

    ending: Ending
    reason: str
    retriable: bool = True
    delay: float | None = None


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The worker hands the task back before it started: shutdown, pause, restart, crash, runtime not ready."""

    reason: str


Outcome = Success | Failure | NotStarted


@dataclass(frozen=True, slots=True)
class Complete:
    """Keep it as completed, for its ttl_completed."""

    result: bytes | None


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again after ``delay`` seconds; 0 puts it into pending at once. Costs one retry."""

    delay: float
    ending: Ending
    reason: str


@dataclass(frozen=True, slots=True)
class Archive:
    """Keep it as archived, for its ttl_archived."""

    ending: Ending
    reason: str


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Back to the front of its queue at no cost, with its former pending_since.

    ``free_loss`` counts one more loss of a worker that held the task ahead.
    """

    free_loss: bool = False


Decision = Complete | Retry | Archive | GiveBack


def decide(outcome: Outcome, *, max_retry: int, retried: int, policy: RetryPolicy, random: float) -> Decision:
    """What happens to the task after this attempt.

    ``retried`` is the number of retries used before it; ``random`` in [0, 1) spreads the delay.
    """
    match outcome:
        case Success(result):
            return Complete(result)
        case NotStarted():
            return GiveBack()
        case Failure(ending, reason, retriable, delay):
            if not retriable:
                return Archive(ending, reason)
            if retried >= max_retry:
                return Archive(ending, reason)
            wait = policy.delay_before(retried + 1, random) if delay is None else delay
            return Retry(wait, ending, reason)


def decide_lost(
    *, max_retry: int, retried: int, losses: int, free_losses: int | None, policy: RetryPolicy, random: float
) -> Decision:
    """What happens to a task whose worker stopped renewing its lease.

    ``free_losses`` is None for a task that had started, else how often in a row it was lost while only held
    ahead. ``losses`` counts the charged ones since the last re-run: the first goes straight back to pending,
    later ones wait for the retry delay.
    """
    if free_losses is not None and free_losses < MAX_FREE_LOSSES:
        return GiveBack(free_loss=True)
    if retried >= max_retry:
        return Archive(Ending.LOST, "lease expired: max retries exceeded")
    delay = 0.0 if losses == 0 else policy.delay_before(retried + 1, random)
    return Retry(delay, Ending.LOST, "lease expired")
