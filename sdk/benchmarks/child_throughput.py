"""How many trivial tasks a second a task process answers through pipes.

    python sdk/benchmarks/child_throughput.py [--tasks N] [--window N] [--protocol 1|2] [SCRIPT]

Keeps WINDOW requests in the pipe. SCRIPT is a task process of your own, such as a bare loop to compare with;
without it, an echo handler of this package runs. Prints tasks per second and the process's CPU time per task.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
ECHO = "from runqy_python import run, task\n@task\ndef handle(payload): return payload\nrun()\n"


def request(number: int) -> bytes:
    payload = '{"x": 1, "text": "' + "a" * 80 + '"}'
    limits = '"retry_count":0,"max_retry":3'
    return f'{{"task_id":"{number:036d}","type":"q.default","payload":{payload},{limits}}}\n'.encode()


def answered(process: subprocess.Popen[bytes], tasks: int, window: int) -> float:
    """Seconds until all tasks were answered."""
    assert process.stdin is not None
    assert process.stdout is not None
    requests = [request(number) for number in range(tasks)]
    reading, writing = process.stdout.fileno(), process.stdin.fileno()
    seen = b""
    while b'"ready"' not in seen:
        seen += os.read(reading, 65536)
    started = time.perf_counter()
    sent = min(window, tasks)
    os.write(writing, b"".join(requests[:sent]))
    done = 0
    tail = b""
    while done < tasks:
        data = os.read(reading, 1 << 20)
        if not data:
            raise SystemExit("the process ended before it had answered every task")
        lines = tail + data
        done += lines.count(b'"retry"')
        # A reply's last key may be cut in two by the end of what was read.
        tail = lines[-7:] if not lines.endswith(b"\n") else b""
        done -= tail.count(b'"retry"')
        more = requests[sent : done + window]
        if more:
            os.write(writing, b"".join(more))
            sent += len(more)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("script", nargs="?")
    parser.add_argument("--tasks", type=int, default=40_000)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--protocol", choices=("1", "2"), default="2")
    parser.add_argument("--python", default=sys.executable)
    chosen = parser.parse_args()
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "RUNQY_PROTOCOL": chosen.protocol}
    with tempfile.TemporaryDirectory() as folder:
        script = chosen.script or str(Path(folder) / "echo.py")
        if chosen.script is None:
            Path(script).write_text(ECHO)
        process = subprocess.Popen(
            [chosen.python, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment
        )
        with process:
            seconds = answered(process, chosen.tasks, chosen.window)
            assert process.stdin is not None
            process.stdin.close()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = 1e6 * (used.ru_utime + used.ru_stime) / chosen.tasks
    print(f"{chosen.tasks / seconds:,.0f} tasks/s, {cpu:.1f} us of CPU per task ({Path(script).name})")


if __name__ == "__main__":
    main()
