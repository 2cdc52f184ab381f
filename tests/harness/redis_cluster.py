"""A Redis Cluster of three masters on loopback, put together with plain commands."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import redis

from harness.redis_servers import RedisServer, free_port
from runqy.broker.connection import RedisTarget

SLOTS = 16384
MASTERS = 3


class ClusterServers:
    """The three processes and how to reach them."""

    def __init__(self, nodes: list[RedisServer]) -> None:
        self.nodes = nodes

    @property
    def target(self) -> RedisTarget:
        return RedisTarget(
            self.nodes[0].url, mode="cluster", nodes=tuple(f"127.0.0.1:{node.port}" for node in self.nodes)
        )


@contextlib.contextmanager
def running_cluster(binary: str, folder: Path) -> Iterator[ClusterServers]:
    """Three masters with all slots, every one of which knows the others."""
    nodes: list[RedisServer] = []
    buses: list[int] = []
    try:
        for number in range(MASTERS):
            node_folder = folder / f"node{number}"
            node_folder.mkdir(parents=True)
            buses.append(free_port())
            arguments = (
                *("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"),
                *("--cluster-node-timeout", "5000", "--cluster-port", str(buses[-1])),
            )
            nodes.append(RedisServer(binary, node_folder, free_port(), arguments).start())
        _join(nodes, buses)
        yield ClusterServers(nodes)
    finally:
        for node in nodes:
            node.stop()


def _join(nodes: list[RedisServer], buses: list[int]) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(redis.Redis(port=node.port, decode_responses=True)) for node in nodes]
        share = SLOTS // MASTERS
        for number, client in enumerate(clients):
            last = SLOTS - 1 if number == MASTERS - 1 else (number + 1) * share - 1
            client.execute_command("CLUSTER ADDSLOTSRANGE", number * share, last)
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        for node, bus in zip(nodes[1:], buses[1:], strict=True):
            clients[0].execute_command("CLUSTER MEET", "127.0.0.1", node.port, bus)
        deadline = time.monotonic() + 30
        while not all(_is_whole(client) for client in clients):
            assert time.monotonic() < deadline, "the cluster did not come together in 30 s"
            time.sleep(0.05)


def _is_whole(client: redis.Redis) -> bool:
    info = client.execute_command("CLUSTER INFO")
    text = info if isinstance(info, str) else "\n".join(f"{key}:{value}" for key, value in info.items())
    slots = client.execute_command("CLUSTER SLOTS")
    owners = slots if isinstance(slots, (list, dict)) else []
    return "cluster_state:ok" in text and f"cluster_known_nodes:{MASTERS}" in text and len(owners) == MASTERS
