"""Queue files: read at start, on request, and when they change; a bad one leaves everything as it was."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import structlog
from watchfiles import awatch

from runqy.config.source import Loaded, load_file, load_folder
from runqy.errors import ConfigurationError, RunqyError
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


async def load_configured(state: ServerState) -> Loaded:
    """The queues that the configured files hold now. Raises `ConfigurationError` with every problem."""
    if state.settings.config_dir is None:
        raise ConfigurationError("no folder of queue files is configured (--config or QUEUE_WORKERS_DIR)")
    return load(state.settings.config_dir)


async def reload_folder(state: ServerState, who: str) -> ReloadReport:
    """Read the queue files and store what they say, all or nothing."""
    try:
        loaded = await load_configured(state)
        saved = await state.queues.save_all(loaded.queues, who)
    except ConfigurationError as error:
        texts = tuple(error_texts(error))
        for text in texts:
            log.error("queue files are wrong, the stored configuration stays in force", problem=text)
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
