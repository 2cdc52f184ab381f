"""The five levers as settings, read by the same function as in queue files and requests."""

from __future__ import annotations

from collections.abc import Mapping

from runqy.settings.reading import Found, Resolver, Setting, SettingError
from runqy.tasks.limits import LEVERS, Lever, LimitError, Limits, Override, Source, is_fractional, parse_lever


def lever_setting(lever: Lever, variables: tuple[str, ...], keys: tuple[str, ...] = ()) -> Setting[int | None]:
    """One lever under the given names; the texts of refusals are the contract's."""

    def read(found: Found) -> int | None:
        try:
            return parse_lever(lever, found.value, found.name)
        except LimitError as error:
            text = str(error)
            if keys:
                # The worker's contract words it the other way round.
                text = text.replace(f"{found.name}: invalid duration", f"invalid {found.name}", 1)
            raise SettingError(text) from None

    return Setting(lever.name, read, variables=variables, keys=keys)


LEVER_SETTINGS: Mapping[Lever, Setting[int | None]] = {
    lever: lever_setting(lever, (lever.environment,)) for lever in LEVERS
}
"""``RUNQY_DEFAULT_*`` of the server"""


def read_levers(resolver: Resolver, settings: Mapping[Lever, Setting[int | None]], source: Source) -> Limits:
    """Limits from settings; what is not given keeps its default. A fraction that is rounded up is told once."""
    values: dict[str, int | None] = {}
    for lever, setting in settings.items():
        found = resolver.find(setting)
        if found is None:
            resolver.describe(setting, lever.default, "default")
            continue
        values[lever.name] = resolver.read(setting, found, None)
        if is_fractional(lever, found.value) and values[lever.name] is not None:
            resolver.warnings.append(f"{found.name}: {found.text} is rounded up to {values[lever.name]} s")
    return Limits().override(Override(**values), source)
