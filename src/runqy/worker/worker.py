"""The composition root of a worker: everything is made and joined here, and ended in order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Mapping

import httpx2
import msgspec
import structlog

from runqy.broker.broker import Broker
from runqy.broker.connection import Connection, connect
from runqy.broker.events import Events
from runqy.broker.inspector import Inspector
from runqy.broker.workers import WorkerRegistry
from runqy.errors import DeploymentError, RunqyError
from runqy.maintenance import RECOVER_SECONDS, Maintenance
from runqy.service import end_tasks
from runqy.settings.worker import WorkerSettings
from runqy.telemetry import add_secret
from runqy.worker.breaker import RestartRules
from runqy.worker.deploy import Deployed, Deployer
from runqy.worker.finisher import Finisher
from runqy.worker.heartbeat import Heartbeat, WaitingForRedis, new_worker_id
from runqy.worker.long_running import LongRunning
from runqy.worker.one_shot import OneShot
from runqy.worker.outputs import Outputs
from runqy.worker.processor import Lane, Processor
from runqy.worker.registration import Registration, RegistrationClient

log = structlog.get_logger(__name__)

HEARING_SECONDS = 0.5
"""How long the first beat waits until orders are heard."""
LAST_PICKUP_SECONDS = 1.0
"""How long, at the beginning of a stop, the answer to the last pickup is waited for."""
LAST_SECONDS = 1.6
"""How long, after the shutdown timeout, everything else may take: ending processes, writing the last ends, leaving."""
LEAVE_SECONDS = 0.4
"""The part of it that is for taking the record away."""


def group_queues(names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """The parents to register for, each with the full names that are wanted; empty for all of them."""
    parents: dict[str, list[str]] = {}
    for name in names:
        parent, dot, _ = name.partition(".")
        wanted = parents.setdefault(parent, [])
        if dot:
            wanted.append(name)
    bare = {name for name in names if "." not in name}
    return {parent: () if parent in bare else tuple(wanted) for parent, wanted in sorted(parents.items())}


class Worker:
    """One worker process.

    ``stay_up`` (for `runqy dev`): a deployment or a start that fails is shown and tried again by `reload`,
    instead of ending the worker. ``told`` gets each line that task code prints.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        stay_up: bool = False,
        told: Callable[[str | None, str, str], None] | None = None,
        on_status: Callable[[str, str], None] = lambda status, detail: None,
    ) -> None:
        self._settings = settings
        self._stay_up = stay_up
        self._told = told
        self._on_status = on_status
        self._stopping = asyncio.Event()
        self._at_once = asyncio.Event()
        self._connection: Connection | None = None
        self._refreshing = asyncio.Lock()
        self._config_news = asyncio.Event()
        self._registered: dict[str, Registration] = {}
        self.worker_id = new_worker_id()
        add_secret(settings.api_key.get_secret_value())
        if settings.git_token is not None:
            add_secret(settings.git_token.get_secret_value())

    def stop(self) -> None:
        """Begin the stop; asked a second time, running tasks are given back at once."""
        if self._stopping.is_set():
            self._at_once.set()
        self._stopping.set()

    async def run(self) -> int:
        """Work until `stop`; returns the exit code. Raises `RunqyError` when it can't begin."""
        async with httpx2.AsyncClient() as http:
            self._registering = RegistrationClient(self._settings, http, waiting=self._wait_for)
            work = asyncio.ensure_future(self._work())
            stopping = asyncio.ensure_future(self._stopping.wait())
            await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            try:
                if work.done():
                    await work
                await end_tasks(work)
            finally:
                await self._end()
        return 0

    def _wait_for(self, text: str) -> None:
        log.warning(text)
        self._on_status("waiting", text)
        if self._connection is not None:
            self._heartbeat.say("bootstrapping", text)

    async def _work(self) -> None:
        parents = group_queues(self._settings.queues)
        first = next(iter(parents))
        log.info("registering", server=self._settings.server_url, queues=list(parents), worker=self.worker_id)
        registration = await self._registering.register(first)
        await self._join(registration)
        for number, (parent, wanted) in enumerate(parents.items()):
            if number:
                registration = await self._registering.register(parent)
            await self._bring_up(registration, wanted)
        self._heartbeat.say("running")
        self._on_status("running", "")
        log.info("ready for tasks", queues=dict(self._heartbeat.queues), worker=self.worker_id)
        await self._processor.start()
        await self._maintenance.start()
        while True:
            await self._config_news.wait()
            self._config_news.clear()
            await self._follow_configuration(parents)

    async def _join(self, registration: Registration) -> None:
        """Connect to Redis and make everything that works on it."""
        settings = self._settings
        target = registration.redis
        connection: Connection = await WaitingForRedis(lambda: connect(target), self._wait_for)()
        broker = Broker(connection, lease_seconds=settings.lease_seconds)
        self._outputs = Outputs(broker, told=self._told)
        self._finisher = Finisher(broker, flush=self._outputs.flush)
        self._processor = Processor(
            broker,
            self._finisher,
            self._outputs,
            worker_id=self.worker_id,
            concurrency=settings.concurrency,
            fallback=settings.fallback,
        )
        self._heartbeat = Heartbeat(
            WorkerRegistry(connection),
            broker,
            self._processor,
            self._outputs,
            worker_id=self.worker_id,
            concurrency=settings.concurrency,
            renew_seconds=settings.lease_renew_seconds,
            config_changed=self._config_news.set,
        )
        self._heartbeat.queues = dict.fromkeys(group_queues(settings.queues), 0)
        self._events = Events(connection)
        self._events.subscribe_cancel(self._processor.cancel)
        self._events.subscribe_control(self._on_order)
        inspector = Inspector(connection)
        self._maintenance = Maintenance(
            broker,
            inspector.queues,
            fallback=settings.fallback,
            # Looking less often than a lease lasts would seem an outage each time, and nothing were ever recovered.
            recover_seconds=min(RECOVER_SECONDS, settings.lease_seconds / 4),
        )
        self._connection = connection
        await self._events.start()
        await self._outputs.start()
        await self._finisher.start()
        with contextlib.suppress(TimeoutError):
            # Whoever sees the record may give orders at once.
            async with asyncio.timeout(HEARING_SECONDS):
                await self._events.wait_connected()
        await self._heartbeat.start()

    async def _bring_up(self, registration: Registration, wanted: tuple[str, ...]) -> None:
        """Deploy one parent queue and start its runtime."""
        parent = registration.parent
        queues = choose_queues(registration, wanted)
        self._heartbeat.say("bootstrapping", f"deploying {parent}")
        while True:
            try:
                deployed = await self._deploy(registration)
                runtime = self._runtime(deployed)
                lane = Lane(parent, queues, runtime, registration.deployment.scheduling)
                await runtime.start()
                break
            except DeploymentError as error:
                self._heartbeat.say("degraded", *error.lines())
                self._on_status("failed", "\n".join(error.lines()))
                if not self._stay_up:
                    raise
                log.error("the task code can't be run yet; it is tried again when it changes", queue=parent)
                await self._config_news.wait()
                self._config_news.clear()
                registration = await self._registering.register(parent, for_ever=True)
        self._registered[parent] = registration
        self._heartbeat.queues.pop(parent, None)
        self._heartbeat.queues |= queues
        self._heartbeat.commits[parent] = deployed.commit
        self._processor.add(lane)
        self._events.subscribe_wake(queues, self._processor.wake)

    async def _deploy(self, registration: Registration) -> Deployed:
        deployer = Deployer(self._settings, said=lambda line: log.debug(line, queue=registration.parent))
        log.info("deploying", queue=registration.parent, branch=registration.deployment.branch)
        return await deployer.deploy(registration)

    def _runtime(self, deployed: Deployed) -> LongRunning | OneShot:
        rules = RestartRules.of(self._settings)
        if self._stay_up:
            rules = RestartRules(max_restarts=1)
        if deployed.order.mode == "one_shot":
            return OneShot(
                deployed,
                self._processor,
                rules,
                concurrency=self._settings.concurrency,
                kill_grace=self._settings.kill_grace,
            )
        return LongRunning(deployed, self._processor, rules, kill_grace=self._settings.kill_grace)

    def deployed(self, parent: str) -> Deployed:
        """What runs for a parent queue. Raises KeyError for one that is not up."""
        return self._processor.lanes[parent].runtime.deployed

    def reload(self) -> None:
        """Look for changed code or configuration now, and restart the task processes with it."""
        self._registered.clear()
        self._config_news.set()

    def _on_order(self, text: str) -> None:
        try:
            order = msgspec.json.decode(text)
        except msgspec.DecodeError:
            return
        if not isinstance(order, dict):
            return
        match order.get("order"), order.get("worker"):
            case "configuration", _:
                self._config_news.set()
            case "restart", self.worker_id:
                log.info("restarting the task processes on request")
                for lane in self._processor.lanes.values():
                    task = asyncio.ensure_future(lane.runtime.restart())
                    task.add_done_callback(lambda done: done.exception())
            case "drain", self.worker_id:
                self.stop()
            case "pause", self.worker_id:
                log.info("paused on request: taking no tasks")
                self._processor.pause()
                self._heartbeat.nudge()
            case "resume", self.worker_id:
                log.info("resumed on request: taking tasks again")
                self._processor.resume()
                self._heartbeat.nudge()

    async def _follow_configuration(self, parents: Mapping[str, tuple[str, ...]]) -> None:
        """Ask again, and redeploy what changed: running tasks finish first, then the new code takes over."""
        async with self._refreshing:
            for parent, wanted in parents.items():
                try:
                    registration = await self._registering.register(parent, for_ever=True)
                    if registration != self._registered.get(parent):
                        await self._switch(registration, wanted)
                except RunqyError as error:
                    # The old deployment goes on.
                    log.error("a new configuration could not be taken over", queue=parent, reason=str(error))
                    self._heartbeat.say("running", *error.lines())
                    self._on_status("failed", "\n".join(error.lines()))

    async def _switch(self, registration: Registration, wanted: tuple[str, ...]) -> None:
        parent = registration.parent
        deployed = await self._deploy(registration)
        lane = self._processor.lanes[parent]
        lane.draining = True
        try:
            await self._until_empty(lane)
            if deployed.order.mode == lane.runtime.deployed.order.mode:
                lane.runtime.replace(deployed)
                await lane.runtime.restart()
            else:
                await lane.runtime.stop()
                lane.runtime = self._runtime(deployed)
                await lane.runtime.start()
        finally:
            lane.draining = False
        queues = choose_queues(registration, wanted)
        for name in lane.queues:
            self._heartbeat.queues.pop(name, None)
        lane.queues, lane.scheduling = queues, registration.deployment.scheduling
        self._heartbeat.queues |= queues
        self._heartbeat.commits[parent] = deployed.commit
        self._events.unsubscribe_wake(self._processor.wake)
        for other in self._processor.lanes.values():
            self._events.subscribe_wake(other.queues, self._processor.wake)
        self._registered[parent] = registration
        self._heartbeat.say("running")
        self._processor.wake()
        log.info("a new configuration is in force", queue=parent, commit=deployed.commit[:12])

    async def _until_empty(self, lane: Lane) -> None:
        """Let what runs finish, for as long as a shutdown would wait; the rest is given back by the restart."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5 if self._stay_up else self._settings.shutdown_timeout):
                await self._processor.until_empty(lane)

    async def _end(self) -> None:
        """Stop in order: take nothing, let work finish, give the rest back, write it, remove the record."""
        if self._connection is None:
            return
        self._heartbeat.say("draining")
        loop = asyncio.get_running_loop()
        end = loop.time() + self._settings.shutdown_timeout
        await self._processor.stop_taking(min(LAST_PICKUP_SECONDS, self._settings.shutdown_timeout))
        draining = asyncio.ensure_future(self._processor.drain(max(end - loop.time(), 0)))
        at_once = asyncio.ensure_future(self._at_once.wait())
        await asyncio.wait({draining, at_once}, return_when=asyncio.FIRST_COMPLETED)
        at_once.cancel()
        await end_tasks(draining)
        last = loop.time() + LAST_SECONDS
        await self._maintenance.stop()
        await asyncio.gather(*(lane.runtime.stop() for lane in self._processor.lanes.values()), return_exceptions=True)
        try:
            async with asyncio.timeout_at(max(last - LEAVE_SECONDS, loop.time() + LEAVE_SECONDS)):
                await self._finisher.drain()
        except TimeoutError:
            log.error(
                "Redis is away: results could not be delivered; their tasks are run again", tasks=self._finisher.backlog
            )
        await self._finisher.stop()
        await self._outputs.stop()
        await self._events.stop()
        await self._heartbeat.stop(max(last - loop.time(), LEAVE_SECONDS))
        await self._connection.close()
        log.info("stopped", worker=self.worker_id)


def choose_queues(registration: Registration, wanted: tuple[str, ...]) -> dict[str, int]:
    """The queues to serve: all of the parent's, or those that the worker asked for and the server has."""
    if not wanted:
        return dict(registration.queues)
    chosen = {name: registration.queues[name] for name in wanted if name in registration.queues}
    for name in wanted:
        if name not in registration.queues:
            log.warning("the server has no such queue", queue=name, known=sorted(registration.queues))
    if not chosen:
        raise DeploymentError(
            f"None of the wanted queues exists: {', '.join(wanted)}",
            why=f"the server has {', '.join(sorted(registration.queues)) or 'none'}",
            hint="check worker.queues or RUNQY_QUEUES",
        )
    return chosen


async def run_worker(settings: WorkerSettings) -> int:
    """Run a worker as a program: SIGTERM or SIGINT stops it, a second one at once. Returns the exit code."""
    worker = Worker(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    try:
        return await worker.run()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
