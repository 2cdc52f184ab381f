"""Entry points and the tree of commands; each group is imported only when it is used."""

from __future__ import annotations

import difflib
import importlib
import sys
from dataclasses import dataclass
from typing import Any

import click

from runqy import __version__
from runqy.cli.output import Output
from runqy.errors import RunqyError

COMMANDS = {
    "serve": ("runqy.cli.serve:serve", "Start the server (what `runqy` alone does)."),
    "worker": ("runqy.cli.worker:worker", "Start a worker; list, restart and drain workers."),
    "dev": ("runqy.cli.dev:dev", "Run your task code here with everything it needs, reloading it as you edit."),
    "init": ("runqy.cli.init:init", "Write a small working project to begin with."),
    "doctor": ("runqy.cli.doctor:doctor", "Check the whole system: what is not well, and the command that mends it."),
    "demo": ("runqy.cli.demo:demo", "See it work: a classifier on real images, and the five levers."),
    "task": ("runqy.cli.task:task", "Enqueue tasks, look at them, act on them."),
    "queue": ("runqy.cli.queue:queue", "List, inspect, pause and resume queues."),
    "config": ("runqy.cli.config:config", "Check, list, change and reload queue configuration."),
    "autoscale": ("runqy.cli.autoscale:autoscale", "Rented machines that come and go (not in this release)."),
    "key": ("runqy.cli.key:key", "Create, list and revoke API keys."),
    "account": ("runqy.cli.account:account", "Who may log in to the dashboard."),
    "login": ("runqy.cli.auth:login", "Save a server and its key."),
    "logout": ("runqy.cli.auth:logout", "Forget a saved server."),
    "auth": ("runqy.cli.auth:auth", "See and choose the saved servers."),
    "vault": ("runqy.cli.vault:vault", "Keep secrets for task code, encrypted."),
    "completion": ("runqy.cli.completion:completion", "Completion for bash, zsh or fish."),
}
EXTRAS = {
    **dict.fromkeys(
        ("fastapi", "starlette", "uvicorn", "sqlalchemy", "alembic", "aiosqlite", "watchfiles", "cryptography"),
        "server",
    ),
    "psycopg": "postgres",
}
"""Which extra brings a package that a bare installation lacks."""
SINGLE_DASH = {"-config": "--config", "-validate": "--validate", "-version": "--version"}
"""Flags of the worker in the form that the original's users type."""


@dataclass(slots=True)
class Session:
    """What the global options say."""

    server: str = ""
    api_key: str = ""
    redis_uri: str = ""
    output: Output = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.output = self.output or Output()


class Suggesting(click.Group):
    """A group that names the nearest command when one does not exist."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1, cutoff=0.5) if args else []
            if near:
                raise click.UsageError(f"there is no command {args[0]!r}; did you mean {near[0]!r}?", ctx) from error
            raise


class Lazy(Suggesting):
    """Knows the names and one-line helps of its commands, and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, name = entry[0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def version_text() -> str:
    """As the original prints it."""
    return f"runqy version {__version__} (commit: none, built: unknown)"


@click.group(
    cls=Lazy,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "-v", "--version", message=version_text())
@click.option("-s", "--server", default="", help="URL of the server (RUNQY_SERVER).")
@click.option("-k", "--api-key", default="", help="Key for the server; better in RUNQY_API_KEY or RUNQY_API_KEY_FILE.")
@click.option("--redis-uri", default="", help="Redis of the server; better in RUNQY_REDIS_URL.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print only results.")
@click.option("--verbose", is_flag=True, help="Print more, tracebacks included.")
@click.pass_context
def cli(
    ctx: click.Context, server: str, api_key: str, redis_uri: str, as_json: bool, quiet: bool, verbose: bool
) -> None:
    """A distributed task queue for machine-learning inference and other heavy work.

    Without a command it starts the server. To try it: `runqy demo`; with your own code: `runqy dev`.
    """
    session = Session(server, api_key, redis_uri, Output(as_json=as_json, quiet=quiet, verbose=verbose))
    ctx.obj = session
    for flag, value, name in (("--api-key", api_key, "RUNQY_API_KEY"), ("--redis-uri", redis_uri, "RUNQY_REDIS_URL")):
        if value and (flag == "--api-key" or "@" in value):
            session.output.warn(f"{flag} shows a secret to everyone who can list processes; use {name} or {name}_FILE")
    if ctx.invoked_subcommand is None:
        from runqy.cli.serve import serve

        ctx.invoke(serve)


def run(arguments: list[str]) -> int:
    """Run the command line; returns the exit code. Prints every error itself, and never a traceback unasked."""
    output = Output(as_json="--json" in arguments, verbose="--verbose" in arguments)
    try:
        # Without its standalone mode click returns what the command returns: an exit code, or None.
        result = cli.main(args=arguments, prog_name="runqy", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except RunqyError as error:
        output.error(error)
        return error.exit_code
    except click.exceptions.Exit as error:
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        output.note("interrupted")
        return 130
    except click.ClickException as error:
        output.error(_usage(error))
        return 2
    except BrokenPipeError:
        # Whoever read our output has enough of it.
        sys.stderr.close()
        return 0
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None or output.verbose:
            raise
        output.error(
            RunqyError(
                "This command needs more than a worker's installation",
                why=f"the package {error.name} is not installed",
                hint=f"pip install 'runqy[{extra}]'",
            )
        )
        return 1
    except Exception as error:
        if output.verbose:
            raise
        output.error(
            RunqyError(
                f"runqy failed in a way that nobody foresaw: {type(error).__name__}: {error}",
                hint="run it again with --verbose to see where, and report it",
            )
        )
        return 1


def _usage(error: click.ClickException) -> RunqyError:
    hint = ""
    context = getattr(error, "ctx", None)
    if context is not None:
        hint = f"see `{context.command_path} --help`"
    message = error.format_message()
    return RunqyError(message[:1].lower() + message[1:], hint=hint)


def main() -> None:
    """`runqy`."""
    arguments = sys.argv[1:]
    if "worker" in arguments:
        arguments = [SINGLE_DASH.get(argument, argument) for argument in arguments]
    sys.exit(run(arguments))


def worker_main() -> None:
    """`runqy-worker`: the same as `runqy worker`."""
    arguments = [SINGLE_DASH.get(argument, argument) for argument in sys.argv[1:]]
    sys.exit(run(["worker", *arguments]))


if __name__ == "__main__":
    main()
