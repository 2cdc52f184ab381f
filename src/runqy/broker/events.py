"""What happens in Redis, told at once: ends of tasks, queues with work, orders to workers."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import structlog
from redis.exceptions import RedisError

from runqy.broker import keys
from runqy.broker.connection import Connection, open_subscriber, translate
from runqy.errors import RunqyError
from runqy.service import end_tasks
from runqy.tasks.state import TERMINAL

IDLE_SECONDS = 5.0
"""After this long without a message the connection is tried with a PING; twice as long, and it is made anew."""
MAX_BACKOFF_SECONDS = 5.0

log = structlog.get_logger(__name__)

DELETED = "deleted"
"""Stands where a state would, for a task that an operator deleted."""

_TASK_CHANNELS = keys.progress_channel("")
_TERMINAL_WORDS = tuple(state.value for state in TERMINAL)


class Follower:
    """What is told about one task, in order: pairs of a kind and a text.

    Kinds: ``state`` (the text is the state), ``progress`` and ``output`` (JSON), ``log`` (text). Whoever reads
    too slowly loses the oldest; ``lost`` counts them.
    """

    def __init__(self) -> None:
        self._told: deque[tuple[str, str]] = deque(maxlen=_FOLLOWED_MESSAGES)
        self._new = asyncio.Event()
        self.lost = 0

    def tell(self, kind: str, text: str) -> None:
        """Add one."""
        self.lost += len(self._told) == _FOLLOWED_MESSAGES
        self._told.append((kind, text))
        self._new.set()

    async def next(self, timeout: float) -> tuple[str, str] | None:
        """The next one, None when ``timeout`` seconds pass without one."""
        if not self._told:
            self._new.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._new.wait()
            except TimeoutError:
                return None
        return self._told.popleft()


_FOLLOWED_MESSAGES = 2_000


class Events:
    """One subscription for a whole process, made again for ever when it breaks.

    After each reconnection everybody is woken as if something had happened: what was told meanwhile is lost,
    so whoever waits has to look again.
    """

    def __init__(self, connection: Connection, *, task_ends: bool = False) -> None:
        """``task_ends``: also listen to what becomes of tasks (a server does, a worker does not)."""
        self._connection = connection
        self._task_ends = task_ends
        self._wakes: dict[str, list[Callable[[str], None]]] = defaultdict(list)
        self._cancels: list[Callable[[str], None]] = []
        self._controls: list[Callable[[str], None]] = []
        self._changes: list[Callable[[str, str, str], None]] = []
        self._waiters: dict[str, set[asyncio.Future[None]]] = defaultdict(set)
        self._followers: dict[str, set[Follower]] = defaultdict(set)
        self._pubsub: Any = None
        self._task: asyncio.Task[None] | None = None
        self._connected = asyncio.Event()

    @property
    def connected(self) -> bool:
        """Whether the subscription stands now."""
        return self._connected.is_set()

    async def start(self) -> None:
        """Begin to listen; returns at once, before the subscription stands."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="events")

    async def wait_connected(self) -> None:
        await self._connected.wait()

    async def stop(self) -> None:
        """End the subscription; whoever waits for an end is released."""
        task, self._task = self._task, None
        await end_tasks(task)
        self._release_all()

    def subscribe_wake(self, queues: Iterable[str], callback: Callable[[str], None]) -> None:
        """Call back with a queue's name when it has work after it had none, or was resumed."""
        for queue in queues:
            self._wakes[queue].append(callback)

    def unsubscribe_wake(self, callback: Callable[[str], None]) -> None:
        for callbacks in self._wakes.values():
            while callback in callbacks:
                callbacks.remove(callback)

    def subscribe_cancel(self, callback: Callable[[str], None]) -> None:
        """Call back with the id of a task that must stop."""
        self._cancels.append(callback)

    def subscribe_control(self, callback: Callable[[str], None]) -> None:
        """Call back with an order to workers: JSON text."""
        self._controls.append(callback)

    def subscribe_changes(self, callback: Callable[[str, str, str], None]) -> None:
        """Call back with queue, state (or `DELETED`) and id for each task that moved (needs ``task_ends``)."""
        self._changes.append(callback)

    @property
    def followed(self) -> int:
        """How many tasks are followed now."""
        return len(self._followers)

    @contextlib.asynccontextmanager
    async def follow(self, task_id: str) -> AsyncIterator[Follower]:
        """Listen to one task (needs ``task_ends``) while the block lasts; many may follow on the one connection."""
        follower, channel = Follower(), keys.progress_channel(task_id)
        self._followers[task_id].add(follower)
        try:
            if len(self._followers[task_id]) == 1:
                await self._change("subscribe", channel)
            yield follower
        finally:
            self._followers[task_id].discard(follower)
            if not self._followers[task_id]:
                del self._followers[task_id]
                await self._change("unsubscribe", channel)

    async def _change(self, verb: str, *channels: str) -> None:
        """Subscribe or unsubscribe where the subscription stands; a new one is told of all followers anyway."""
        if channels and self._pubsub is not None and self.connected:
            # A broken connection is found and made again by the one who listens.
            with contextlib.suppress(RedisError, OSError):
                await getattr(self._pubsub, verb)(*channels)

    async def wait_for_end(self, queue: str, task_id: str, timeout: float) -> bool:
        """Wait until the task has ended or is gone; False when ``timeout`` seconds pass first.

        Thousands may wait at once on the one connection. The caller reads the task afterwards. Raises
        `UnavailableError` when Redis can't be asked.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        while True:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            # Registered before looking, so that an end in between is not missed.
            self._waiters[task_id].add(future)
            try:
                state = await self._connection.command("HGET", keys.task(queue, task_id), "state")
                if state is None or state.decode() in _TERMINAL_WORDS:
                    return True
                left = deadline - asyncio.get_running_loop().time()
                if left <= 0:
                    return False
                # While the subscription is broken, or a worker that tells nothing ends the task, look now and then.
                async with asyncio.timeout(min(left, IDLE_SECONDS)):
                    await future
            except TimeoutError:
                if asyncio.get_running_loop().time() >= deadline:
                    return False
            finally:
                self._waiters[task_id].discard(future)
                if not self._waiters[task_id]:
                    del self._waiters[task_id]

    def waiting(self, task_id: str) -> int:
        """How many wait for the end of this task now."""
        return len(self._waiters.get(task_id, ()))

    def _release_all(self) -> None:
        for futures in self._waiters.values():
            for future in futures:
                if not future.done():
                    future.set_result(None)

    def _wake_all(self) -> None:
        for queue, callbacks in list(self._wakes.items()):
            for callback in list(callbacks):
                callback(queue)
        self._release_all()

    async def _run(self) -> None:
        backoff = 0.05
        while True:
            try:
                await self._listen()
            except (TimeoutError, RedisError, OSError, RunqyError) as error:
                told = translate(error, self._connection.target) if not isinstance(error, RunqyError) else error
                log.warning("subscription lost, connecting again", reason=str(told), seconds=round(backoff, 2))
            except Exception:
                # Whatever it is: without a subscription nobody here would be woken any more.
                log.exception("subscription failed, connecting again", seconds=round(backoff, 2))
            self._connected.clear()
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, MAX_BACKOFF_SECONDS)
            if self._listened:
                backoff, self._listened = 0.05, False

    _listened = False

    async def _listen(self) -> None:
        client: Any = open_subscriber(self._connection)
        try:
            async with client.pubsub(ignore_subscribe_messages=False) as pubsub:
                self._pubsub = pubsub
                await pubsub.subscribe(keys.WAKE_CHANNEL, keys.CANCEL_CHANNEL, keys.CONTROL_CHANNEL)
                if self._task_ends:
                    await pubsub.psubscribe(keys.EVENTS_PATTERN)
                awaited = 3 + int(self._task_ends)
                silent = False
                while True:
                    message = await pubsub.get_message(timeout=IDLE_SECONDS)
                    if message is None:
                        if silent:
                            raise TimeoutError("no answer to a PING on the subscription")
                        silent = True
                        await pubsub.ping()
                        continue
                    silent = False
                    if message["type"] in {"subscribe", "psubscribe"}:
                        awaited -= 1
                        if awaited == 0:
                            self._listened = True
                            self._connected.set()
                            self._wake_all()
                            await self._change("subscribe", *map(keys.progress_channel, self._followers))
                    else:
                        self._deliver(message)
        finally:
            self._pubsub = None
            self._connected.clear()
            await client.aclose()

    def _deliver(self, message: dict[str, Any]) -> None:
        if message["type"] not in {"message", "pmessage"}:
            return
        channel, text = message["channel"].decode(), message["data"].decode("utf-8", "replace")
        if channel == keys.WAKE_CHANNEL:
            for callback in list(self._wakes.get(text, ())):
                callback(text)
        elif channel == keys.CANCEL_CHANNEL:
            for callback in list(self._cancels):
                callback(text)
        elif channel == keys.CONTROL_CHANNEL:
            for callback in list(self._controls):
                callback(text)
        elif channel.startswith(_TASK_CHANNELS):
            kind, _, rest = text.partition(" ")
            for follower in self._followers.get(channel.removeprefix(_TASK_CHANNELS), ()):
                follower.tell(kind, rest)
        else:
            self._deliver_changes(keys.queue_of_events_channel(channel), text)

    def _deliver_changes(self, queue: str, text: str) -> None:
        for line in text.split("\n"):
            state, *ids = line.split(" ")
            ended = state in _TERMINAL_WORDS or state == DELETED
            for task_id in ids:
                if ended:
                    for future in self._waiters.get(task_id, ()):
                        if not future.done():
                            future.set_result(None)
                for follower in self._followers.get(task_id, ()):
                    follower.tell("state", state)
                for callback in self._changes:
                    callback(queue, state, task_id)
