"""`runqy completion`: what a shell needs to complete commands, options, and live names."""

from __future__ import annotations

import click

from runqy.cli.app import Session
from runqy.cli.options import json_option, pass_session

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@json_option
@pass_session
def completion(session: Session, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Examples:
      eval "$(runqy completion bash)"
      runqy completion fish > ~/.config/fish/completions/runqy.fish
    """
    from click.shell_completion import get_completion_class

    from runqy.cli.app import cli

    kind = get_completion_class(shell)
    assert kind is not None
    # Not source(): that of bash starts a bash to see its version.
    made = kind(cli, {}, "runqy", "_RUNQY_COMPLETE")
    script = made.source_template % made.source_vars()
    session.output.document({"shell": shell, "script": script})
    session.output.line(script)
