"""`runqy init`: a small project that works, to begin with."""

from __future__ import annotations

import re
from pathlib import Path

import click

from runqy.cli.app import Session
from runqy.cli.options import json_option, pass_session
from runqy.errors import ConflictError, UsageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")

_MAIN = '''"""The task code: `load` runs once when the process starts, `handle` for every task."""

from runqy_python import load, run, task


@load
def setup():
    """Bring what all tasks share, such as a model; it is handed to each of them as ctx."""
    return {"greeting": "Hello"}


@task
def handle(payload, ctx):
    """Payload and result are whatever JSON can say."""
    name = payload.get("name", "world")
    print(f"greeting {name}", flush=True)
    return {"text": f"{ctx['greeting']}, {name}!"}


if __name__ == "__main__":
    run()
'''
_TEST = '''"""Run with: python -m unittest"""

import unittest

from main import handle, setup


class TestHandle(unittest.TestCase):
    def test_it_greets_by_name(self):
        self.assertEqual(handle({"name": "Ada"}, setup()), {"text": "Hello, Ada!"})


if __name__ == "__main__":
    unittest.main()
'''
_REQUIREMENTS = "# What the task code needs, one package a line. runqy-python is added where it is missing.\n"
_QUEUE = """# `runqy dev` runs this folder. For other machines put the code into a repository
# and write git_url and branch in place of path.
queues:
  {name}:
    priority: 1
    deployment:
      path: .
      startup_cmd: python main.py
      limits:
        max_retry: 3
        active_timeout: 5m
        ttl_completed: 24h
"""


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path())
@click.option("--name", help="Name of the queue.  [default: the folder's]")
@json_option
@pass_session
def init(session: Session, folder: Path, name: str | None) -> None:
    """Write a small working project: task code, its test, requirements, and a queue. Nothing is overwritten.

    \b
    Examples:
      runqy init hello && cd hello && runqy dev
    """
    queue = _queue_name(folder, name)
    files = {
        "main.py": _MAIN,
        "test_main.py": _TEST,
        "requirements.txt": _REQUIREMENTS,
        "queue.yaml": _QUEUE.format(name=queue),
    }
    there = [file for file in files if (folder / file).exists()]
    if there:
        raise ConflictError(
            f"nothing was written: {', '.join(there)} exists already in {folder.resolve()}",
            hint="choose an empty folder: runqy init NAME",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            with (folder / file).open("x", encoding="utf-8") as target:
                target.write(text)
    except OSError as error:
        raise UsageError(f"the project can't be written to {folder}", why=error.strerror or str(error)) from error
    session.output.document({"folder": str(folder), "queue": queue, "files": list(files)})
    for file in files:
        session.output.line(f"  {folder / file}")
    session.output.note("Next:")
    session.output.note(f"  runqy dev {folder}" if folder != Path() else "  runqy dev")
    session.output.note(f"""  runqy task enqueue -q {queue} -p '{{"name": "Ada"}}' --wait""")


def _queue_name(folder: Path, given: str | None) -> str:
    if given is not None:
        if not _NAME.fullmatch(given):
            raise UsageError(f"{given!r} can't be the name of a queue", hint="letters, digits, - and _")
        return given
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", folder.resolve().name).strip("-_")
    return name if _NAME.fullmatch(name) else "app"
