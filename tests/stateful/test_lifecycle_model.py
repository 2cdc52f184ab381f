"""Any interleaving of everything that can happen to tasks, on a real Valkey, beside the model of R1..R74."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from harness.redis_servers import RedisServer
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from runqy.broker.connection import ClockOffset, open_client
from stateful.crashing import CrashingConnection
from stateful.machine import LifecycleMachine


@pytest.fixture
def machine(valkey: RedisServer) -> Iterator[type[LifecycleMachine]]:
    """The machine's class, bound to the server of this run."""
    with asyncio.Runner() as runner:

        async def made() -> CrashingConnection:
            return CrashingConnection(valkey.target, open_client(valkey.target), ClockOffset())

        LifecycleMachine.runner = runner
        LifecycleMachine.connection = runner.run(made())
        yield LifecycleMachine
        runner.run(LifecycleMachine.connection.close())


@pytest.mark.timeout(7200)
def test_every_interleaving_keeps_the_promises_of_the_lifecycle(machine: type[LifecycleMachine], is_long: bool) -> None:
    """R3, R8..R12, R16..R18, R47..R56 with crashes, replays, lost leases and clock jumps in between."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=2000 if is_long else 200,
            stateful_step_count=50,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
