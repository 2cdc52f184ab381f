"""Both packages, task processes of them, and a server for their clients."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "sdk" / "src"
RELEASE = "0.2.2"

# The package under test, and the modules beside this file, wherever pytest was started.
sys.path[:0] = [str(SOURCE), str(Path(__file__).parent)]

from fake_server import Server  # noqa: E402
from task_process import Child, Start  # noqa: E402


@contextlib.contextmanager
def starting(folder: Path) -> Iterator[Start]:
    children: list[Child] = []

    def start_child(source: str, *, protocol: int = 2, package: Path = SOURCE, python: str = sys.executable) -> Child:
        script = folder / f"main{len(children)}.py"
        script.write_text(textwrap.dedent(source))
        children.append(Child(script, package, python, protocol))
        return children[-1]

    yield start_child
    for child in children:
        child.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a task process from source text; `import` of the package and `run()` are in the text."""
    with starting(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def start_shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """The same, for a process that several tests may use, since none of them changes it."""
    with starting(tmp_path_factory.mktemp("shared")) as start:
        yield start


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the release that came before, installed once for all processes of the test run."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder = base / f"runqy-python-{RELEASE}"
    with (base / "runqy-python.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "runqy_python").exists():
            command = ["install", "-q", "--no-deps", "--disable-pip-version-check", "--target", str(folder)]
            subprocess.run([sys.executable, "-m", "pip", *command, f"runqy-python=={RELEASE}"], check=True)
    return folder


@pytest.fixture(scope="module", params=[RELEASE, "ours"])
def package(request: pytest.FixtureRequest) -> Path:
    """Both packages in turn."""
    return SOURCE if request.param == "ours" else request.getfixturevalue("released")


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()
