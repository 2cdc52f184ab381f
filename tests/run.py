"""Set up everything that the tests need, then run the checks and the tests.

    python3 tests/run.py [arguments for pytest]

Python packages go into an environment of their own (`.venv-test`), which is used again while what it is made of has
not changed. Redis, PostgreSQL, Chromium and git come from the system's package manager where that is possible (root, or
sudo without a password); where it is not, this names what is missing and stops before the first test. Needs Python
3.11 or newer and nothing else.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = ROOT / ".venv-test"
INPUTS = ("pyproject.toml", "hatch_build.py", "sdk/pyproject.toml", "tests/run.py")
OWN_VARIABLES = ("RUNQY_", "REDIS_", "DATABASE_", "CONFIG_", "ASYNQ_", "SQLITE_", "QUEUE_WORKERS_", "PIP_REQUIRE")


def chromium_is_here() -> bool:
    return any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))


def postgres_is_here() -> bool:
    return shutil.which("initdb") is not None or any(Path("/usr/lib/postgresql").glob("*/bin/initdb"))


# What must be on the machine: how to see it, and the package that brings it.
SYSTEM = {
    "git": (lambda: shutil.which("git") is not None, "git"),
    "curl": (lambda: shutil.which("curl") is not None, "curl"),
    "Redis": (lambda: shutil.which("redis-server") is not None, "redis-server"),
    "PostgreSQL": (postgres_is_here, "postgresql"),
    "Chromium": (chromium_is_here, "chromium"),
}


def say(text: str) -> None:
    print(f"== {text}", flush=True)


def clean_environment() -> dict[str, str]:
    """The environment without what would configure the program under test."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OWN_VARIABLES) and name != "PORT"}
    # pip keeps its own settings from the machine, but nothing may send it past the environment made here.
    kept.pop("PYTHONPATH", None)
    kept.pop("VIRTUAL_ENV", None)
    return kept


def run(*command: str | Path, quiet: bool = False) -> int:
    say(" ".join(str(part) for part in command))
    output = subprocess.DEVNULL if quiet else None
    return subprocess.run(list(map(str, command)), cwd=ROOT, env=clean_environment(), stdout=output).returncode


def system_packages() -> None:
    """Install what is missing, or stop and say how."""
    missing = {name: package for name, (is_here, package) in SYSTEM.items() if not is_here()}
    if not missing:
        return
    command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *missing.values()]
    prefix: list[str] | None = None
    if shutil.which("apt-get"):
        if os.geteuid() == 0:
            prefix = []
        elif shutil.which("sudo") and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0:
            prefix = ["sudo", "-n"]
    if prefix is not None:
        env = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive"]
        run(*env, "apt-get", "update", "-q", quiet=True)
        run(*env, *command, quiet=True)
        missing = {name: package for name, package in missing.items() if not SYSTEM[name][0]()}
    if missing:
        print(f"The tests need {', '.join(missing)}, which this machine does not have.", file=sys.stderr)
        print(f"  fix: sudo apt-get install -y {' '.join(missing.values())}", file=sys.stderr)
        print("       (or the packages of the same purpose on another system), then run this again", file=sys.stderr)
        sys.exit(1)


def environment_digest() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for name in INPUTS:
        path = ROOT / name
        digest.update(path.read_bytes() if path.exists() else b"")
    # The dashboard is built by the installation.
    for path in sorted((ROOT / "dashboard").rglob("*")):
        if path.is_file() and not {"node_modules", ".svelte-kit"} & set(path.parts):
            digest.update(path.read_bytes())
    digest.update(str((ROOT / "src/runqy/server/dashboard_dist/index.html").exists()).encode())
    return digest.hexdigest()


def python_packages() -> Path:
    """The interpreter of the test environment, made anew when its inputs changed."""
    python = ENVIRONMENT / "bin" / "python"
    stamp = ENVIRONMENT / "made-of"
    digest = environment_digest()
    if python.exists() and stamp.exists() and stamp.read_text() == digest:
        return python
    say(f"making {ENVIRONMENT.name}")
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    try:
        venv.create(ENVIRONMENT, with_pip=True)
    except subprocess.CalledProcessError:
        print("Python can't make a virtual environment here.", file=sys.stderr)
        print(f"  fix: sudo apt-get install -y python{sys.version_info[0]}.{sys.version_info[1]}-venv", file=sys.stderr)
        sys.exit(1)
    steps: list[list[str]] = [
        ["-U", "pip>=25.1"],
        ["-e", ".[all]", "-e", "./sdk", "--group", "test", "--group", "gates"],
    ]
    for arguments in steps:
        if run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *arguments):
            print("The packages for the tests could not be installed; pip says why above.", file=sys.stderr)
            sys.exit(1)
    # With what was built just now.
    stamp.write_text(environment_digest())
    return python


def checks(python: Path) -> list[str]:
    """Run the gates; the names of those that failed."""
    tools = python.parent
    gates = {
        "ruff": (tools / "ruff", "check", "."),
        "format": (tools / "ruff", "format", "--check", "."),
        "mypy": (tools / "mypy",),
        "layers": (tools / "lint-imports",),
        "dependencies": (tools / "deptry", "src"),
    }
    return [name for name, command in gates.items() if run(*command)]


def main() -> int:
    if sys.version_info < (3, 11):  # noqa: UP036
        print(f"runqy needs Python 3.11 or newer; this is {sys.version.split()[0]}.", file=sys.stderr)
        return 1
    started = time.monotonic()
    system_packages()
    python = python_packages()
    failed = checks(python)
    if failed:
        print(f"These checks failed: {', '.join(failed)}. The tests were not run.", file=sys.stderr)
        return 1
    say(f"tests (set up and checked in {time.monotonic() - started:.0f} s)")
    return run(python, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", *sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
