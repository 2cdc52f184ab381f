"""`runqy autoscale`: accepted as the original's, and refused in one sentence."""

from __future__ import annotations

import click

from runqy.errors import NotImplementedYetError


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def autoscale(command: tuple[str, ...]) -> None:
    """Rented machines that come and go (not in this release)."""
    raise NotImplementedYetError(NotImplementedYetError.AUTOSCALE)
