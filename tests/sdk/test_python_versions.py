"""Every Python on this machine that the package promises to work with."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SOURCE
from task_process import Start

OLDEST = (3, 8)


def interpreters() -> dict[str, str]:
    """One interpreter per minor version: `3.8` -> path."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    folders += sorted(root.glob("versions/*/bin"))
    found = {f"{sys.version_info[0]}.{sys.version_info[1]}": sys.executable}
    for folder in folders:
        for path in sorted(folder.glob("python3.*")):
            match = re.fullmatch(r"python(3\.(\d+))", path.name)
            if match and (3, int(match[2])) >= OLDEST and match[1] not in found and works(path):
                found[match[1]] = str(path)
    return found


def works(path: Path) -> bool:
    # A version manager's stand-in may name a version that is not chosen here.
    return subprocess.run([str(path), "-c", ""], capture_output=True, check=False).returncode == 0


PYTHONS = interpreters()
every_python = pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS.keys())


@every_python
def test_every_module_compiles_and_imports_without_warnings(python: str) -> None:
    code = """
import pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1], "runqy_python").glob("*.py")):
    compile(path.read_text(encoding="utf-8"), str(path), "exec")
    __import__("runqy_python." + path.stem if path.stem != "__init__" else "runqy_python")
"""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(
        [python, "-W", "error", "-c", code, str(SOURCE)], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


@every_python
def test_a_process_with_every_kind_of_handler_works(start: Start, python: str) -> None:
    child = start(
        """
        import asyncio, datetime
        from dataclasses import dataclass
        from typing import Dict, List, Optional, TypedDict
        from runqy_python import RetryableError, load, log, progress, run, task

        @dataclass
        class Item:
            size: int
            tags: List[str]
            note: Optional[str] = None
        class Request(TypedDict, total=False):
            sizes: Dict[str, int]

        @load
        def prepare(): return {"loaded": True}
        @task
        def plain(item: Item, ctx):
            print(item)
            progress(0.5)
            if item.size < 0:
                raise RetryableError("later", delay=1.5)
            return {"when": datetime.date(2024, 1, 2), "size": item.size / 2}
        @task("batch", batch=2, max_wait=30)
        def batch(payloads, ctx): return [payload * 2 for payload in payloads]
        @task("threads", threads=2)
        def threads(request: Request, ctx): return request
        @task("loop", concurrency=2)
        async def loop(payload, ctx):
            for n in range(payload):
                await asyncio.sleep(0)
                yield n
        run()
        """,
        python=python,
    )
    assert child.ready()["capacity"] == 2 + 2 + 2
    child.send({"task_id": "a", "payload": {"size": 3, "tags": ["x"]}})
    lines = child.until_reply()
    assert [line.get("event") for line in lines] == ["start", "log", "progress", None]
    assert lines[1]["text"] == "Item(size=3, tags=['x'], note=None)"
    assert lines[-1]["result"] == {"when": "2024-01-02", "size": 1.5}
    assert child.ask({"size": -1, "tags": []})["delay"] == 1.5
    assert child.ask({"tags": ["x", 1]})["error"] == "Invalid payload: size: missing; tags[1]: expected str, got 1"
    child.send(*({"task_id": str(n), "payload": n, "task": "batch"} for n in (1, 2)))
    assert [line["result"] for line in child.lines(4)[2:]] == [2, 4]
    assert child.ask({"sizes": {"a": 1}}, task="threads")["result"] == {"sizes": {"a": 1}}
    reply = child.ask({"sizes": {"a": "1"}}, task="threads")
    assert reply["error"] == "Invalid payload: sizes['a']: expected int, got '1'"
    assert child.ask(3, task="loop")["result"] == [0, 1, 2]
    assert child.end() == 0
    assert child.stderr() == ""


@every_python
def test_task_process_starts_without_the_slow_imports(python: str) -> None:
    code = "import runqy_python, sys; print([name for name in sys.argv[1:] if name in sys.modules])"
    slow = ["asyncio", "http.client", "ssl", "logging"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
    # -S: site packages of the machine may import anything at start.
    result = subprocess.run(
        [python, "-S", "-c", code, *slow], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
