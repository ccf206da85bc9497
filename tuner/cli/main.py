"""The ``tuner`` command: its group, and how errors become messages and exit codes."""

from __future__ import annotations

import errno
import gc
import logging
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from tuner.errors import EnvironmentTrouble, InputError, TunerError, UnknownName
from tuner.extras import Command, extras, load, remedy
from tuner.study import job_files
from tuner.version import __version__

if TYPE_CHECKING:
    from tuner.devices.settings import Setting

#: Thresholds of the garbage collector (Python's own are 700, 10 and 10): what is imported stays, and looking
#: through it again and again takes a tenth of an answer's time.
GARBAGE_THRESHOLDS = (100_000, 20, 20)
#: Headings of ``--help``, in order.
HEADINGS = ("Tune", "Answer", "Watch", "Records", "Service", "Look")
#: Commands of the core; extras add theirs.
COMMANDS = {
    "tune": Command("tuner.cli.tune:tune", "Find the fastest kernel and config for a problem.", "Tune"),
    "best": Command("tuner.cli.best:best", "Print the config to use for a problem, or the library.", "Answer"),
    "front": Command("tuner.cli.best:front", "Show the configs that trade time against energy or error.", "Answer"),
    "export": Command("tuner.cli.best:export", "Write the champion as source, binary, Python module or JSON.", "Answer"),
    "wanted": Command("tuner.cli.champions:wanted", "List what programs asked for and nobody tuned.", "Answer"),
    "champions": Command("tuner.cli.champions:champions", "List champions, pin them, go back to earlier ones.", "Records"),
    "records": Command("tuner.cli.records:records", "Export, import, publish, list, check and take back records.", "Records"),
    "config": Command("tuner.cli.inspect:config", "Show the defaults that hold here, and where they come from.", "Look"),
    "devices": Command("tuner.cli.inspect:devices", "List the devices of this machine.", "Look"),
    "kernels": Command("tuner.cli.inspect:kernels", "List the kernels, with parameters and constraints.", "Look"),
    "doctor": Command("tuner.cli.inspect:doctor", "Check this machine, and print remedies.", "Look"),
}  # fmt: skip
#: Errors of the system that a user can remedy.
SYSTEM_ERRORS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "the disk is full; free some room and run the command again"),
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.EACCES: "permission denied; choose another folder, or change its permissions",
}


@cache
def commands() -> dict[str, Command]:
    """Name -> command, of the core and of all extras."""
    return COMMANDS | {name: command for extra in extras() for name, command in extra.commands.items()}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Names in the order in which ``--help`` shows them."""
        return sorted(commands(), key=lambda name: HEADINGS.index(commands()[name].heading))

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Imports one command."""
        return load(commands()[name].at) if name in commands() else None

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Also reads the user's defaults for the command."""
        name, command, rest = super().resolve_command(context, args)
        if command is not None and name not in (None, "config"):
            from tuner.devices.settings import read

            if known := read():
                context.default_map = {name: default_map(command, name, known)}
        return name, command, rest

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands by group, without importing them."""
        widest = max(map(len, commands()))
        for heading in HEADINGS:
            with formatter.section(heading):
                rows = [(name, of.help) for name, of in commands().items() if of.heading == heading]
                formatter.write_dl([(name.ljust(widest), about) for name, about in rows])

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes names of commands without importing any."""
        names = [name for name in self.list_commands(context) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=commands()[name].help) for name in names]
        return found + click.Command.shell_complete(self, context, incomplete)


def default_map(
    command: click.Command, name: str | None, known: Mapping[tuple[str, str], Setting]
) -> dict[str, Any]:
    """Defaults of a command, as click takes them.

    Args:
        command: The command.
        name: Its name.
        known: What files say.

    Raises:
        UnknownName: A file sets an option that the command does not have.
    """
    if isinstance(command, click.Group):
        shared = {("", option): setting for (of, option), setting in known.items() if of in ("", name)}
        return {part: default_map(below, part, shared) for part, below in command.commands.items()}
    options, defaults = option_names(command), dict[str, Any]()
    for (of, option), setting in sorted(known.items(), key=lambda item: item[0][0] != ""):
        parameter = options.get(option.replace("-", "_"))
        if parameter is None and of and of == name:
            raise UnknownName(f"option of {name} in {setting.file}", option, options)
        if parameter is not None and of in ("", name):
            defaults[parameter] = setting.value
    return defaults


def option_names(command: click.Command) -> dict[str, str]:
    """The names by which a file may set options of a command -> the names of its parameters."""
    return {
        word.lstrip("-").replace("-", "_"): str(parameter.name)
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for word in parameter.opts
        if word.startswith("--")
    }


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
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return InputError.exit_code
    except click.UsageError as error:
        usage = f"\n{error.ctx.get_usage()}" if error.ctx else ""
        return _say(error.format_message() + usage, InputError.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _say("interrupted", 130)
    except BrokenPipeError:
        return 0
    except ModuleNotFoundError as error:
        if (error.name or "tuner").partition(".")[0] == "tuner":
            raise
        return _say(f"this needs the package {error.name}, which is not installed; {remedy()}", 3)
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
