"""The bench of the worker tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.registrar import Registrar, registrar
from harness.workers import Bench

from runqy.broker.connection import Connection


@pytest.fixture(scope="session")
def deployments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One deployment folder for all tests, so that the environment of the task code is built once."""
    return tmp_path_factory.mktemp("deployments")


@pytest.fixture
def server() -> Iterator[Registrar]:
    with registrar() as told:
        yield told


@pytest.fixture
def bench(connection: Connection, server: Registrar, tmp_path: Path, deployments: Path) -> Bench:
    return Bench(connection, server, tmp_path, deployments)
