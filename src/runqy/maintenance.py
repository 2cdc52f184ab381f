"""What happens to tasks as time passes: due ones become pending, lost ones are recovered, old ones go.

The same three services run in every server and every worker; they need no lock, since each script checks what
it finds and a second one finds nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from runqy.broker.broker import Broker
from runqy.errors import UnavailableError
from runqy.service import Service
from runqy.tasks.limits import Limits
from runqy.timing import SYSTEM_CLOCK, Clock

FORWARD_SECONDS = 1.0
RECOVER_SECONDS = 5.0
PURGE_SECONDS = 5.0
RECOVER_BATCH = 50
"""Lost leases per script call: each costs as much as the end of an attempt, 50 us of Redis."""
BATCHES_PER_ROUND = 20
"""How many bounded batches one queue gets before the next queue has its turn."""

QueueNames = Callable[[], Awaitable[Sequence[str]]]


class Maintenance:
    """The forwarder, the recoverer and the janitor for the queues that ``queue_names`` returns."""

    def __init__(
        self,
        broker: Broker,
        queue_names: QueueNames,
        *,
        fallback: Limits | None = None,
        clock: Clock = SYSTEM_CLOCK,
        forward_seconds: float = FORWARD_SECONDS,
        recover_seconds: float = RECOVER_SECONDS,
        purge_seconds: float = PURGE_SECONDS,
    ) -> None:
        self._broker = broker
        self._queue_names = queue_names
        self._fallback = fallback or Limits()
        self._clock = clock
        self._hold_off: HoldOff = HoldOff(broker, clock)
        self._looked_from: dict[str, int] = {}
        self.forwarder = Service("forwarder", self._forward, interval=forward_seconds)
        self.recoverer = Service("recoverer", self._recover, interval=recover_seconds)
        self.janitor = Service("janitor", self._purge, interval=purge_seconds)
        self.services = (self.forwarder, self.recoverer, self.janitor)

    async def start(self) -> None:
        for service in self.services:
            await service.start()

    async def stop(self) -> None:
        for service in self.services:
            await service.stop()

    async def _forward(self) -> bool:
        return await self._each_queue(lambda q: self._broker.forward(q, 100), 100)

    async def _purge(self) -> bool:
        return await self._each_queue(lambda q: self._broker.purge(q, 50, fallback=self._fallback), 50)

    async def _recover(self) -> bool:
        try:
            if await self._hold_off.holds():
                return False
            return await self._each_queue(self._recover_batch, RECOVER_BATCH)
        except UnavailableError:
            self._hold_off.outage()
            raise

    async def _recover_batch(self, queue: str) -> int:
        found, length = await self._broker.recover(
            queue, RECOVER_BATCH, first=self._looked_from.get(queue, 0), fallback=self._fallback
        )
        following = self._looked_from.get(queue, 0) + RECOVER_BATCH
        self._looked_from[queue] = following if following < length else 0
        return found

    async def _each_queue(self, batch: Callable[[str], Awaitable[int]], full: int) -> bool:
        """Some batches for every queue; True when a queue had more than its turn allowed."""
        more = False
        for queue in await self._queue_names():
            for _ in range(BATCHES_PER_ROUND):
                if await batch(queue) < full:
                    break
            else:
                more = True
        return more


class HoldOff:
    """Keeps the recoverer still for one lease period after Redis started or was out of reach.

    Workers could not renew their leases meanwhile; they come first, so an outage makes nothing run twice.
    """

    def __init__(self, broker: Broker, clock: Clock = SYSTEM_CLOCK) -> None:
        self._broker = broker
        self._clock = clock
        self._until = 0.0
        self._run_id: str | None = None
        self._last_seen: float | None = None
        self._outage = False

    def outage(self) -> None:
        """Redis could not be reached; the waiting begins when it is back."""
        self._outage = True

    async def holds(self) -> bool:
        """Whether to leave lost leases alone for now. Raises `UnavailableError`."""
        run_id, uptime = await self._broker.server_start()
        now = self._clock.monotonic()
        lease = self._broker.lease_seconds
        # A gap in our own looking is an outage too: we may have been cut off, or frozen.
        gap = self._last_seen is not None and now - self._last_seen > lease
        if run_id != self._run_id and uptime < lease:
            self._until = max(self._until, now + lease - uptime)
        if gap or self._outage or (self._run_id is not None and run_id != self._run_id):
            self._until = max(self._until, now + lease)
        self._outage = False
        self._run_id = run_id
        self._last_seen = now
        return now < self._until
