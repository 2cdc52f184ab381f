"""The virtual environment of task code: built beside, swapped in, built again only when its inputs changed."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from runqy.errors import DeploymentError
from runqy.program import Output, run_program

BUILD_SECONDS = 900.0
KEPT_ENVIRONMENTS = 2
READY = "runqy-ready"
_PIP = ("--disable-pip-version-check", "--no-input")
_INCLUDED = re.compile(r"^\s*(?:-r|-c|--requirement|--constraint)[ =]*(\S+)", re.MULTILINE)
_LOCAL = re.compile(r"^\s*(?:-e\s|--editable|\.|file:|\S+ @ file:)", re.MULTILINE)


def bundled_sdk() -> Path:
    """The folder that holds our copy of `runqy_python`: in the wheel, or in a source checkout."""
    package = Path(__file__).parents[1]
    wheel = package / "sdk_bundle"
    if (wheel / "runqy_python").is_dir():
        return wheel
    return package.parents[1] / "sdk" / "src"


@dataclass(frozen=True, slots=True)
class Plan:
    """How the environment is made. ``kind`` is requirements, project, poetry, uv or empty."""

    kind: str
    digest: str


def plan_environment(work_dir: Path, *, system_site_packages: bool, commit: str) -> Plan:
    """What to install, and a digest of everything that the result depends on."""
    requirements, project = work_dir / "requirements.txt", work_dir / "pyproject.toml"
    kind = ""
    if (work_dir / "uv.lock").exists() and project.exists() and _uv():
        kind = "uv"
    elif project.exists() and _is_poetry(project):
        kind = "poetry"
    elif requirements.exists():
        kind = "requirements"
    elif project.exists():
        kind = "project"
    digest = hashlib.sha256(f"{kind} {sys.version} {sys.base_prefix} {system_site_packages}".encode())
    digest.update(str(bundled_sdk()).encode())
    inputs = {
        "uv": (project, work_dir / "uv.lock"),
        "poetry": (project, work_dir / "poetry.lock"),
        "project": (project,),
    }.get(kind, ())
    for path in (*inputs, *(_requirement_files(requirements) if kind == "requirements" else ())):
        text = path.read_bytes() if path.exists() else b""
        digest.update(path.name.encode() + b"\0" + text)
        if _LOCAL.search(text.decode("utf-8", "replace")):
            digest.update(commit.encode())
    if kind == "project":
        # The project itself is installed, so its own code is an input.
        digest.update(commit.encode())
    return Plan(kind, digest.hexdigest()[:24])


def _requirement_files(first: Path) -> Iterator[Path]:
    seen: set[Path] = set()
    waiting = [first]
    while waiting:
        path = waiting.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        yield path
        text = path.read_text(encoding="utf-8", errors="replace")
        waiting += [path.parent / name for name in _INCLUDED.findall(text)]


def _is_poetry(project: Path) -> bool:
    try:
        return "poetry" in tomllib.loads(project.read_text(encoding="utf-8")).get("tool", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DeploymentError(
            "pyproject.toml can't be read", why=str(error), hint="mend it in the repository"
        ) from error


def _uv() -> list[str]:
    found = shutil.which("uv")
    if found:
        return [found]
    return [sys.executable, "-m", "uv"] if importlib.util.find_spec("uv") else []


class EnvironmentBuilder:
    """Keeps the environments of one parent queue under ``folder``, one per digest of its inputs."""

    def __init__(
        self, folder: Path, *, system_site_packages: bool = True, said: Callable[[str], None] = lambda _: None
    ) -> None:
        self._folder = folder
        self._system = system_site_packages
        self._said = said

    async def build(self, work_dir: Path, commit: str) -> Path:
        """The environment's folder, made when its inputs are new. Raises `DeploymentError`.

        A build that fails leaves every earlier environment as it was.
        """
        plan = plan_environment(work_dir, system_site_packages=self._system, commit=commit)
        place = self._folder / plan.digest
        if (place / READY).exists() and (place / "bin" / "python").exists():
            os.utime(place / READY)
            return place
        self._folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(place, ignore_errors=True)
        try:
            await self._create(place)
            await self._install(plan.kind, place, work_dir)
            self._add_sdk(place)
            (place / READY).touch()
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
        self._forget_old()
        return place

    async def _create(self, place: Path) -> None:
        flags = ["--system-site-packages"] if self._system else []
        uv = _uv()
        if uv:
            command = [*uv, "venv", "--quiet", "--python", sys.executable, *flags, str(place)]
        else:
            command = [sys.executable, "-m", "venv", "--without-pip", *flags, str(place)]
        output = await self._run(command, place.parent)
        if output.code:
            version = f"{sys.version_info[0]}.{sys.version_info[1]}"
            raise DeploymentError(
                "The virtual environment could not be made",
                why=output.last,
                hint=f"on Debian and Ubuntu: apt-get install python{version}-venv",
                tail=output.tail[-8:],
            )

    async def _install(self, kind: str, place: Path, work_dir: Path) -> None:
        if not kind:
            return
        environment = {"VIRTUAL_ENV": str(place), "UV_PROJECT_ENVIRONMENT": str(place)}
        match kind:
            case "uv":
                command = [*_uv(), "sync", "--frozen", "--no-dev", "--inexact", "--python", str(place / "bin/python")]
            case "poetry":
                if shutil.which("poetry") is None:
                    raise DeploymentError(
                        "poetry is not installed on this machine, and the project's pyproject.toml asks for it",
                        hint="install poetry, or give the project a requirements.txt",
                    )
                command = ["poetry", "install", "--no-interaction", "--no-root"]
            case "project":
                command = [*await self._installer(place), "."]
            case _:
                command = [*await self._installer(place), "-r", "requirements.txt"]
        output = await self._run(command, work_dir, environment)
        if output.code:
            raise DeploymentError(
                f"The requirements of the task code could not be installed ({kind})",
                why=_pip_error(output),
                hint="mend them in the repository; the next deployment tries again",
                tail=output.tail[-15:],
            )

    async def _installer(self, place: Path) -> list[str]:
        """How to install into the environment: uv, our own pip aimed at it, or a pip of its own."""
        python = str(place / "bin" / "python")
        uv = _uv()
        # uv does not see the system's packages, which a GPU image brings on purpose.
        if uv and not self._system:
            return [*uv, "pip", "install", "--python", python]
        if importlib.util.find_spec("pip"):
            return [sys.executable, "-m", "pip", *_PIP, "--python", python, "install"]
        output = await self._run([python, "-m", "ensurepip", "--default-pip"], place.parent)
        if output.code:
            raise DeploymentError(
                "There is neither uv nor pip to install the requirements with",
                why=output.last,
                hint="pip install uv (beside runqy), or install python3-pip",
            )
        return [python, "-m", "pip", *_PIP, "install"]

    async def _run(self, command: list[str], cwd: Path, more: dict[str, str] | None = None) -> Output:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RUNQY_", "REDIS_", "DATABASE_")) and name not in {"PYTHONPATH", "PYTHONHOME"}
        }
        environment |= {"PIP_PROGRESS_BAR": "off", "PIP_ROOT_USER_ACTION": "ignore", **(more or {})}
        return await run_program(command, cwd=cwd, env=environment, timeout=BUILD_SECONDS, said=self._said)

    def _add_sdk(self, place: Path) -> None:
        """Our SDK at the end of the environment's own path: what the requirements bring comes first."""
        for site in place.glob("lib/python*/site-packages"):
            (site / "zz_runqy_sdk.pth").write_text(f"{bundled_sdk()}\n")

    def _forget_old(self) -> None:
        ready = sorted(self._folder.glob(f"*/{READY}"), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in ready[KEPT_ENVIRONMENTS:]:
            if _is_in_use(old.parent):
                continue
            # Set aside first: a folder that is being deleted must not look ready.
            with contextlib.suppress(OSError):
                aside = tempfile.mkdtemp(prefix=".gone-", dir=self._folder)
                old.parent.rename(Path(aside) / "environment")
                shutil.rmtree(aside, ignore_errors=True)


def _is_in_use(place: Path) -> bool:
    """Whether a process runs in the environment: task code of an earlier deployment, or of another worker."""
    mark = f"VIRTUAL_ENV={place}".encode()
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return True
    return False


_CREDENTIALS = re.compile(r"(://)[^/@\s]+@")


def _pip_error(output: Output) -> str:
    errors = [line for line in output.tail if line.lstrip().lower().startswith("error")]
    return _CREDENTIALS.sub(r"\1****@", errors[-1] if errors else output.last)
