"""The command `topology`: list agents, show their graphs, launch them, look after runs.

Exit codes: 0 finished or stopped on purpose, 1 a node or the platform failed, 2 the command was wrong, 130 Ctrl-C.
Errors go to stderr as one `error: ...`; with TOPOLOGY_DEBUG=1 their traceback comes first.
"""

from __future__ import annotations

import enum
import errno
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

import typer
import typer.core

from launch.entry import end_at_ctrl_c
from launch.extra_options import OPEN, parse_options
from topology._version import __version__
from topology.errors import ProgramError, TopologyError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["app", "main"]


@final
class _Group(typer.core.TyperGroup):
    """Turns the project's errors into a message and an exit code, for every command."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TopologyError as error:
            if os.environ.get("TOPOLOGY_DEBUG") == "1":
                traceback.print_exception(error)
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2 if isinstance(error, ProgramError) else 1) from None
        except OSError as error:  # a full disk under stdout, a current directory that has been removed
            if error.errno == errno.EPIPE:
                raise  # its reader has had enough; click knows what to do
            if os.environ.get("TOPOLOGY_DEBUG") == "1":
                traceback.print_exception(error)
            typer.echo(f"error: the system refused: {error}", err=True)
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=_Group,
    name="topology",
    help="Declare, inspect and launch distributed reinforcement-learning programs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class GraphFormat(enum.StrEnum):
    """How `topology graph` prints."""

    TREE = "tree"
    JSON = "json"
    MERMAID = "mermaid"
    DOT = "dot"
    SVG = "svg"


AgentArgument = Annotated[str, typer.Argument(help="An agent's name, module:function, or path/to/file.py:function.")]
RunArgument = Annotated[str, typer.Argument(help="A run: its name, the beginning of it, its path, or 'latest'.")]
EnvironmentOption = Annotated[
    str | None,
    typer.Option(
        "--environment", "-e", help="The setting 'environment', e.g. catch, gym:CartPole-v1 or file.py:function."
    ),
]
ActorsOption = Annotated[int | None, typer.Option("--num-actors", "-n", min=1, help="The setting 'num_actors'.")]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Seed of the run; every node derives its own from it.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="Any setting of the agent; repeatable.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"topology {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[  # noqa: ARG001 - its callback does it all
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version.")
    ] = False,
) -> None:
    # A terminal that cannot show a character gets a replacement, not an exception.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _settings(
    environment: str | None = None,
    num_actors: int | None = None,
    seed: int | None = None,
    extra: list[str] | None = None,
) -> dict[str, str]:
    from launch.settings import parse_assignments

    named = {"environment": environment, "num_actors": num_actors, "seed": seed}
    return {
        **{name: str(value) for name, value in named.items() if value is not None},
        **parse_assignments(extra or []),
    }


def _extra(context: typer.Context, agent: str) -> dict[str, str]:
    """Settings that were given as options, which the command leaves to the agent."""
    from launch.catalog import find_agent

    if not context.args:
        return {}
    own = [option for parameter in context.command.params for option in parameter.opts if option.startswith("--")]
    return parse_options(context.args, [field.name for field in find_agent(agent).settings.fields], own)


@app.command("list")
def list_(
    agent: Annotated[str | None, typer.Argument(help="Show the settings of this agent.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the agents; with a name, show what can be set on that agent."""
    from launch import listing

    if agent is None:
        listing.print_agents(_console(), as_json=as_json)
    else:
        listing.print_settings(agent, _console(), as_json=as_json)


@app.command(context_settings=OPEN)
def graph(
    context: typer.Context,
    agent: AgentArgument,
    format_: Annotated[GraphFormat, typer.Option("--format", "-f", help="How to print it.")] = GraphFormat.TREE,
    environment: EnvironmentOption = None,
    num_actors: ActorsOption = None,
    seed: SeedOption = None,
    set_: SetOption = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
) -> None:
    """Show the nodes of a program and who talks to whom, without starting anything.

    Any setting of the agent can also be given as an option of its name: --num-workers 4.
    """
    from launch.catalog import find_agent

    found = find_agent(agent)
    texts = {**_settings(environment, num_actors, seed, set_), **_extra(context, agent)}
    shown = found.build(texts).graph()
    make = {
        GraphFormat.TREE: shown.to_text,
        GraphFormat.JSON: shown.to_json,
        GraphFormat.MERMAID: shown.to_mermaid,
        GraphFormat.DOT: shown.to_dot,
        GraphFormat.SVG: shown.to_svg,
    }
    text = make[format_]()
    if output is None:
        typer.echo(text)
        return
    try:
        output.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    except OSError as error:
        raise ProgramError(f"the graph cannot be written to {output}: {error.strerror or error}") from None


def _known_terminal(name: str | None) -> str | None:
    from launch.terminals import FALLING_BACK, TERMINALS

    if name is None or name in TERMINALS + FALLING_BACK:
        return name
    raise typer.BadParameter(f"{name!r} is not one of {', '.join(TERMINALS)}.")


def _known_launch_type(name: str | None) -> str | None:
    from launch.launch_types import LaunchType
    from launch.launchers import launcher_names

    if name in (None, "local_mp", "local_mt"):
        return name
    known = [known for known in launcher_names() if known not in {kind.value for kind in LaunchType if kind.is_test}]
    if name not in known:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(known)}.")
    return name


@app.command(context_settings=OPEN)
def launch(
    context: typer.Context,
    agent: AgentArgument,
    environment: EnvironmentOption = None,
    num_actors: ActorsOption = None,
    seed: SeedOption = None,
    set_: SetOption = None,
    launch_type: Annotated[
        str | None,
        typer.Option(
            "--launch-type",
            "-t",
            callback=_known_launch_type,
            help="Nodes as processes (local_mp, default), as threads (local_mt), or the name of another launcher.",
        ),
    ] = None,
    run_directory: Annotated[
        Path | None,
        typer.Option("--run-directory", "-d", help="Where logs, metrics and checkpoints go: a new directory."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the run that --run-directory names: its settings, its newest state."),
    ] = False,
    terminal: Annotated[
        str | None,
        typer.Option(
            "--terminal",
            callback=_known_terminal,
            help="Where nodes print: output_to_files (default), current_terminal, tmux_session.",
        ),
    ] = None,
    live: Annotated[
        bool | None, typer.Option("--live/--no-live", help="Redraw one view, or print a line every few seconds.")
    ] = None,
) -> None:
    """Run an agent and show it while it learns. Ctrl-C stops it; twice, at once.

    Any setting of the agent can also be given as an option of its name: --num-workers 4.
    """
    from launch.session import LaunchRequest, launch_agent

    request = LaunchRequest(
        launch_type=launch_type,
        seed=seed,
        run_directory=run_directory,
        resume=resume,
        terminal=terminal,
        live=live,
    )
    texts = {**_settings(environment, num_actors, None, set_), **_extra(context, agent)}
    raise typer.Exit(launch_agent(agent, texts, request, _console()))


@app.command()
def status(
    run: Annotated[str | None, typer.Argument(help="A run; without one, all are listed.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show one run, or list all runs."""
    from launch import listing
    from launch.run_control import find_run

    if run is None:
        listing.print_runs(_console(), as_json=as_json)
    else:
        listing.print_status(find_run(run), _console(), as_json=as_json)


@app.command()
def logs(
    run: RunArgument,
    node: Annotated[str, typer.Argument(help="A node (actor/0) or a group (actor); all when left out.")] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="Only the last lines of each node.")] = None,
) -> None:
    """Print what the nodes of a run printed."""
    from launch.monitor import Monitor
    from launch.run_control import find_run, log_files, read_logs

    directory = find_run(run)
    files = log_files(directory, node)
    lines = Monitor(directory).logs(node, tail=tail) if follow else read_logs(files, tail)
    for name, line in lines:
        typer.echo(line if node and "/" in node else f"{name} | {line}")


@app.command()
def stop(
    run: RunArgument,
    now: Annotated[bool, typer.Option("--now", help="Kill what has not ended after 2 s.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait for a graceful end.")] = 60.0,
) -> None:
    """Stop a run that another terminal started, and wait until it has ended; or end what a crash has left of it."""
    from launch.launchers import launcher_of_run
    from launch.run_control import find_run

    directory = find_run(run)
    launcher = launcher_of_run(directory.read_state().get("launch_type", ""))
    typer.echo(f"{directory.run_id}: {launcher.undeploy(directory, now=now, timeout_s=timeout)}")


@app.command()
def prune(
    keep: Annotated[int, typer.Option("--keep", min=0, help="Keep so many of the newest runs.")] = 0,
    older_than: Annotated[
        float, typer.Option("--older-than", min=0, help="Only runs that began so many days ago.")
    ] = 0,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete the directories of runs that are over, with their logs, metrics and checkpoints."""
    from launch.run_control import old_runs, remove_run

    if not keep and not older_than:
        raise typer.BadParameter("say what may go: --keep N, --older-than DAYS, or both")
    runs = old_runs(keep=keep, older_than_s=older_than * 86_400)
    for run in runs:
        typer.echo(run.path)
    if not runs or not (yes or typer.confirm(f"Delete these {len(runs)} runs?")):
        typer.echo("nothing was deleted")
        return
    for run in runs:
        remove_run(run)
    typer.echo(f"{len(runs)} runs were deleted")


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


def main() -> None:
    """Runs the command."""
    end_at_ctrl_c()
    app(prog_name="topology")


if __name__ == "__main__":
    main()
