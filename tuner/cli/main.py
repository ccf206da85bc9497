"""The ``tuner`` command: its group, and how errors become messages and exit codes."""

from __future__ import annotations

import errno
import gc
import importlib
import logging
import re
import signal
import sys
from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem

from tuner.errors import EnvironmentTrouble, InputError, TunerError
from tuner.requests import job_files
from tuner.version import __version__

#: Thresholds of the garbage collector (Python's own are 700, 10 and 10): what is imported stays, and looking
#: through it again and again takes a tenth of an answer's time.
GARBAGE_THRESHOLDS = (100_000, 20, 20)
#: Subcommand -> module and name of its implementation, loaded when it is called: ``--help`` stays quick.
COMMANDS = {
    "survey": ("tuner.cli.survey", "survey", "Time many configs at many problems, for a model."),
    "tune": ("tuner.cli.tune", "tune", "Find the fastest kernel and config for a problem."),
    "best": ("tuner.cli.best", "best", "Print the config to use for a problem, or the library."),
    "front": ("tuner.cli.fronts", "front", "Show the configs that trade time against energy or error."),
    "export": ("tuner.cli.best", "export", "Write the champion as source, binary, Python module or JSON."),
    "ladder": ("tuner.cli.ladder", "ladder", "Measure each kernel of an operation in order."),
    "wanted": ("tuner.cli.wanted", "wanted", "List what programs asked for and nobody tuned."),
    "nightly": ("tuner.cli.nightly", "nightly", "Tune the problems of a plan until a deadline."),
    "champions": ("tuner.cli.champions", "champions", "List champions, pin them, go back to earlier ones."),
    "watch": ("tuner.cli.watch", "watch", "Time champions and library, and say what changed since."),
    "report": ("tuner.cli.watch", "report", "Make the report of an earlier night again."),
    "worker": ("tuner.cli.worker", "worker", "Let this machine's devices work for a fleet."),
    "records": ("tuner.cli.records", "records", "Export, import, publish, list, check and take back records."),
    "distil": ("tuner.cli.distil", "distil", "Find few configs for many shapes, and how to choose."),
    "lookup-quality": (
        "tuner.cli.quality",
        "lookup_quality",
        "Measure what answers for unknown problems cost.",
    ),
    "model": ("tuner.cli.model", "model", "Fit a model to a survey, for shapes that nobody tuned."),
    "show": ("tuner.cli.show", "show", "Show what a study saw, also as a page with figures."),
    "compare": ("tuner.cli.compare", "compare", "Compare devices, drivers, versions, days or studies."),
    "config": ("tuner.cli.config", "config", "Show the defaults that hold here, and where they come from."),
    "simulate": ("tuner.cli.replay", "simulate", "Replay a study on a recorded space, without a device."),
    "serve": ("tuner.service.command", "serve", "Serve answers, jobs and pages over HTTP."),
    "token": ("tuner.cli.access", "token", "Make, list and revoke tokens of the service."),
    "allow": ("tuner.cli.access", "allow", "Allow jobs to name a kernel file of this machine."),
    "devices": ("tuner.cli.inspect", "devices", "List the devices of this machine."),
    "kernels": ("tuner.cli.inspect", "kernels", "List the kernels, with parameters and constraints."),
    "doctor": ("tuner.cli.inspect", "doctor", "Check this machine, and print remedies."),
}
#: Heading of ``--help`` -> its commands.
GROUPS = {
    "Tune": ("tune", "nightly", "ladder", "survey", "worker"),
    "Answer": ("best", "front", "export", "distil", "model", "lookup-quality", "wanted"),
    "Watch": ("watch", "report"),
    "Records": ("records", "champions", "simulate"),
    "Service": ("serve", "token", "allow"),
    "Look": ("show", "compare", "config", "devices", "kernels", "doctor"),
}
#: Errors of the system that a user can remedy.
SYSTEM_ERRORS = {
    errno.ENOSPC: "the disk is full; free some room and run the same command again: it continues",
    errno.EDQUOT: "the disk quota is used up; free some room and run the same command again: it continues",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.EACCES: "permission denied; choose another folder, or change its permissions",
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Names in the order in which ``--help`` shows them."""
        return [name for names in GROUPS.values() for name in names]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Imports one command."""
        if name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Also reads the user's defaults for the command."""
        name, command, rest = super().resolve_command(context, args)
        if name in COMMANDS and name != "config":
            from tuner.devices.settings import read

            known = read()
            if known:
                from tuner.cli.config import default_map

                context.default_map = {**(context.default_map or {}), name: default_map(self, name, known)}
        return name, command, rest

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands by group, without importing them."""
        widest = max(map(len, COMMANDS))
        for heading, names in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(widest), COMMANDS[name][2]) for name in names])

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes names of commands without importing any."""
        names = [name for name in self.list_commands(context) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=COMMANDS[name][2]) for name in names]
        return found + click.Command.shell_complete(self, context, incomplete)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tuner")
def command_line() -> None:
    """Find, measure and store the fastest configuration of compute kernels."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits.

    0 done, 1 nothing found, 2 bad input, 3 trouble, 4 alerts of a watch, 130 interrupted.
    """
    # SIGTERM acts like Ctrl-C, even where a shell started this in the background and had Ctrl-C ignored. A
    # study sets its own handler, which lets the running trial end.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    job_files.announce()
    code = run(list(sys.argv[1:] if arguments is None else arguments))
    job_files.ended(code)
    gc.freeze()  # Python would look through all that was imported twice more; the process's end frees it
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Runs the command line and returns the exit code."""
    try:
        ended = command_line.main(arguments, prog_name="tuner", standalone_mode=False)
    except TunerError as error:
        return _say(str(error), error.exit_code)
    except click.NoSuchOption as error:
        if re.fullmatch(r"-+\d.*", error.option_name):
            return _say(f"a dim is a whole number of 1 or more, got {error.option_name}", InputError.exit_code)
        return _say(error.format_message(), InputError.exit_code)
    except click.UsageError as error:
        usage = f"\n{error.ctx.get_usage()}" if error.ctx else ""
        return _say(error.format_message() + usage, InputError.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _say("interrupted", 130)
    except BrokenPipeError:
        return 0
    except OSError as error:
        # One that names a file is the file's trouble; another may be our mistake, and keeps its traceback.
        if error.errno not in SYSTEM_ERRORS and not (error.errno and error.filename):
            raise
        where = f"{error.filename}: " if error.filename else ""
        what = SYSTEM_ERRORS.get(error.errno) or f"{error.strerror}; check the path"
        return _say(where + what, EnvironmentTrouble.exit_code)
    # Without its standalone mode, click returns the code of an `Exit` instead of raising it.
    return ended if isinstance(ended, int) else 0


def _say(message: str, code: int) -> int:
    click.echo(f"tuner: {message}", err=True)
    return code
