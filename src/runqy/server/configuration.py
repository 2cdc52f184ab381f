"""Queue files of a folder or a git repository, at start, on request and when they change; a bad one changes nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import structlog
from watchfiles import awatch

from runqy.config.source import Loaded, load_file, load_folder
from runqy.errors import ConfigurationError, RunqyError
from runqy.server.config_clone import ConfigClone, ConfigCloneError
from runqy.server.errors import error_texts
from runqy.server.state import ServerState

log = structlog.get_logger(__name__)

DEBOUNCE_MS = 500


@dataclass(frozen=True, slots=True)
class ReloadReport:
    """What a reload did: full queue names, every error, every warning."""

    reloaded: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def load(path: Path) -> Loaded:
    """The queues of a folder or of one file. Raises `ConfigurationError` with every problem."""
    return load_file(path) if path.is_file() else load_folder(path)


async def load_configured(state: ServerState, *, fetch: bool = True) -> Loaded:
    """The queues that the configured files hold now; with a repository and ``fetch``, as they stand there.

    Raises `ConfigurationError` with every problem, `ConfigCloneError` when the repository can't be fetched.
    """
    if state.repository is not None:
        if fetch:
            await state.repository.update()
        return load(state.repository.folder)
    if state.settings.config_dir is None:
        raise ConfigurationError("no folder of queue files is configured (--config or QUEUE_WORKERS_DIR)")
    return load(state.settings.config_dir)


async def reload_folder(state: ServerState, who: str, *, fetch: bool = True) -> ReloadReport:
    """Read the queue files and store what they say, all or nothing."""
    try:
        loaded = await load_configured(state, fetch=fetch)
        saved = await state.queues.save_all(loaded.queues, who)
    except (ConfigurationError, ConfigCloneError) as error:
        texts = tuple(error_texts(error))
        for text in texts:
            log.error("queue files can't be used, the stored configuration stays in force", problem=text)
        return ReloadReport(errors=texts)
    if any(entry.is_change for entry in saved):
        await state.announce_change()
        log.info("queue configuration changed", queues=[s.queue.name for s in saved if s.is_change])
    else:
        await state.inspector.register_queues(state.queues.catalog.full_names())
    for warning in loaded.warnings:
        log.warning(warning)
    names = tuple(name for entry in saved for name in entry.queue.full_names())
    return ReloadReport(names, warnings=tuple(loaded.warnings))


async def load_at_start(state: ServerState) -> None:
    """Take over the queue files. What is wrong with them is said, and the stored configuration stays in force.

    Raises `ConfigurationError` when the repository can't be fetched and nothing is stored yet.
    """
    if state.repository is None and state.settings.config_dir is None:
        return
    report = await reload_folder(state, "start")
    never_fetched = state.repository is not None and not state.repository.commit
    if never_fetched and not state.queues.catalog.queues():
        raise ConfigurationError("The configuration repository can't be used", problems=report.errors)


async def watch_configuration(state: ServerState) -> None:
    """Reload whenever the queue files change, until cancelled."""
    if state.repository is not None:
        await _watch_repository(state, state.repository)
    else:
        await watch_folder(state)


async def _watch_repository(state: ServerState, repository: ConfigClone) -> None:
    taken_over = repository.commit
    while True:
        await asyncio.sleep(state.settings.watch_interval)
        try:
            commit = await repository.update()
            if commit != taken_over:
                await reload_folder(state, "watch", fetch=False)
                taken_over = commit
        except RunqyError as error:
            log.warning("the configuration repository could not be taken over", reason=str(error), hint=error.hint)


async def watch_folder(state: ServerState) -> None:
    """Reload whenever a queue file changes, until cancelled."""
    folder = state.settings.config_dir
    if folder is None:
        return
    async for _ in awatch(folder, debounce=DEBOUNCE_MS, recursive=False, watch_filter=_is_queue_file):
        try:
            await reload_folder(state, "watch")
        except RunqyError as error:
            log.error("queue files could not be taken over", reason=str(error))


def _is_queue_file(_change: object, path: str) -> bool:
    return path.endswith((".yaml", ".yml"))
