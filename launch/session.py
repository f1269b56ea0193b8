"""`topology launch`: from an agent's name to an exit code, with a view in between and a summary at the end."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import final

import typer
from rich.console import Console

import launch
from launch import signals
from launch.catalog import Agent, find_agent
from launch.live_view import follow, make_view
from launch.log_levels import show_levels
from launch.run import Run
from launch.run_control import find_run
from launch.run_directory import RunDirectory
from launch.run_settings import RunSettings
from launch.summary import print_summary
from launch.watch import RunWatch
from topology.errors import LaunchError, ProgramError, TopologyError
from topology.program import Program

__all__ = ["LaunchRequest", "launch_agent"]

INTERRUPTED = 130


@final
@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """What the command line said beside the agent and its settings.

    Attributes:
        launch_type: "local_mp", "local_mt", or the name of another package's launcher; None for that of the run that
            is gone on with, else "local_mp".
        seed: seed of the run; also given to an agent that has a setting of that name. None for that of the run that is
            gone on with, else the defaults.
        run_directory: a new or empty directory; None for a new one under the default base.
        resume: `run_directory` is an earlier run, to go on with.
        terminal: where nodes print; None for their log files only.
        live: redraw one view, or print lines; None for what suits the terminal.
    """

    launch_type: str | None = None
    seed: int | None = None
    run_directory: Path | None = None
    resume: bool = False
    terminal: str | None = None
    live: bool | None = None


@final
class _Signals:
    """What was pressed during one `topology launch`.

    Until there is a run, the first signal breaks the start off with `KeyboardInterrupt`. From then on `launch.signals`
    stops the run; what it hands on is kept here and raised nowhere, so that the end of the run is always shown.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self.breaks_off = True

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Handles Ctrl-C, SIGQUIT and SIGTERM inside the block; does nothing outside the main thread."""
        previous = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, *([signal.SIGQUIT] if hasattr(signal, "SIGQUIT") else [])):
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays nohup
                    previous[number] = signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in previous.items():
                # Whoever pressed was answered, and the command is about to exit: one more must not break that off.
                signal.signal(number, signal.SIG_IGN if self.received else handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.received.append(number)
        if self.breaks_off:
            self.breaks_off = False
            raise KeyboardInterrupt

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C; 0 after SIGTERM alone, by which `topology stop` ends a run on purpose."""
        return INTERRUPTED if any(number != signal.SIGTERM for number in self.received) else 0


def launch_agent(name: str, texts: Mapping[str, str], request: LaunchRequest, console: Console) -> int:
    """Runs an agent to its end, showing it; returns the exit code.

    Raises:
        ProgramError: there is no such agent, or it refuses its settings.
        LaunchError: the platform refuses.
    """
    show_levels()  # of nodes that are threads
    pressed = _Signals()
    with pressed.caught():
        try:
            return _see_through(_prepare(name, texts, request, console), request, console, pressed)
        except KeyboardInterrupt:
            typer.echo("interrupted while starting: nothing of it runs any more", err=True)
            return pressed.exit_code


@final
@dataclass(frozen=True)
class _Prepared:
    """What starts the run, what it is started with, and what it is about: environment and seed, where it has them."""

    start: Callable[[], Run]
    settings: RunSettings
    about: tuple[str, ...]


def _prepare(name: str, given: Mapping[str, str], request: LaunchRequest, console: Console) -> _Prepared:
    """Loads and builds the agent."""
    agent = find_agent(name)
    directory = _directory(request)
    settings = RunSettings(
        agent=name,
        settings=given,
        seed=request.seed,
        launch_type=request.launch_type or "local_mp",
        directory=str(Path.cwd()),
    )
    if request.resume and directory is not None:
        settings = _gone_on_with(RunDirectory(directory), agent, settings, request, console)
    texts = _with_seed(agent, settings)
    program = agent.build(texts)
    if request.resume and directory is not None:
        _check_program(program, directory)
    launch_type = settings.launch_type

    def start() -> Run:
        return launch.launch(
            program,
            _launcher(agent, launch_type),
            local_resources=agent.local_resources(texts) if launch_type != "local_mt" else None,
            restarts=agent.restarts(texts),
            terminal=request.terminal or "output_to_files",
            run_directory=directory,
            seed=settings.seed or 0,
        )

    values = agent.settings.values(texts)
    environment = values.get("environment")
    about = [environment] if isinstance(environment, str) else []
    return _Prepared(start, settings, (*about, *([f"seed {values['seed']}"] if "seed" in values else [])))


def _gone_on_with(
    run: RunDirectory, agent: Agent, given: RunSettings, request: LaunchRequest, console: Console
) -> RunSettings:
    """What the run was launched with, where nothing else is given now; says both."""
    earlier = RunSettings.read(run)
    if earlier is None:
        console.print(
            "resume: the command did not launch this run, so that nobody kept its settings: the agent's defaults hold "
            "where you give none",
            markup=False,
            soft_wrap=True,
        )
        return given
    if unknown := set(earlier.settings) - {field.name for field in agent.settings.fields}:
        raise LaunchError(
            f"--resume: the run in {run.path} was launched as {earlier.agent!r}, and {given.agent!r} has not the "
            f"settings that it was given ({', '.join(sorted(unknown))}): name the agent of the run"
        )
    settings = earlier.changed(given, launch_type=request.launch_type)
    text = f"resume: with the settings of the run ({earlier.describe()})"
    if changes := settings.differences(earlier):
        text += f"; but {changes}"
    if earlier.directory != given.directory:
        text += f"; it was launched in {earlier.directory}, and relative paths are those in {given.directory} now"
    console.print(text, markup=False, soft_wrap=True)
    return settings


def _with_seed(agent: Agent, settings: RunSettings) -> Mapping[str, str]:
    takes_seed = any(field.name == "seed" for field in agent.settings.fields)
    return (
        {"seed": str(settings.seed), **settings.settings}
        if takes_seed and settings.seed is not None
        else settings.settings
    )


def _launcher(agent: Agent, launch_type: str) -> launch.Launcher | str:
    if launch_type == "local_mp" and agent.preload:
        return launch.Processes(preload=agent.preload)
    return launch_type


def _directory(request: LaunchRequest) -> Path | None:
    """Where the run goes; None for a new directory. Raises LaunchError for one that is in use."""
    path = request.run_directory
    if request.resume:
        if path is None:
            raise ProgramError("--resume goes on with an earlier run: say which, --run-directory RUN")
        return find_run(str(path)).path
    if path is None or not path.exists():
        return path
    if not path.is_dir():
        raise LaunchError(f"--run-directory {path} is a file: give a new or an empty directory")
    if (path / "run.json").exists():
        raise LaunchError(
            f"--run-directory {path} is that of an earlier run: give a new or an empty directory, or --resume to go on "
            "from its newest state"
        )
    if any(path.iterdir()):
        raise LaunchError(f"--run-directory {path} exists and is not empty: give a new or an empty directory")
    return path


def _check_program(program: Program, directory: Path) -> None:
    earlier = RunDirectory(directory).read_state().get("program")
    if earlier != program.name:
        raise LaunchError(f"--resume: the run in {directory} is one of {earlier!r}, and this is {program.name!r}")


def _see_through(prepared: _Prepared, request: LaunchRequest, console: Console, pressed: _Signals) -> int:
    """Starts the run, shows it until it has ended, then says how it went."""
    # From before the first node is there: a signal stops the run, and reaches `pressed` when the run has ended.
    with signals.waiting():
        run = prepared.start()
        pressed.breaks_off = False
        _keep(prepared.settings, RunDirectory(run.run_directory))
        try:
            _show(run, request, console)
        finally:
            run.stop()
    code = pressed.exit_code
    watch = RunWatch(RunDirectory(run.run_directory))
    watch.poll()
    watch.state["state"] = run.state  # where its disk is full, run.json may not say
    print_summary(watch, console, about=prepared.about)
    failed = _report_failure(run)
    return code or int(failed)


def _keep(settings: RunSettings, directory: RunDirectory) -> None:
    try:
        settings.write(directory)
    except OSError as error:
        typer.echo(f"warning: --resume will not know the settings of this run: {error}", err=True)


def _show(run: Run, request: LaunchRequest, console: Console) -> None:
    watch = RunWatch(RunDirectory(run.run_directory))
    if request.resume:
        watch.skip_output()
    to_files = request.terminal in (None, "output_to_files")
    # Nodes that print into this terminal would tear a picture apart.
    view = make_view(console, live=request.live if to_files else False)
    if not to_files:  # else the launcher says where
        console.print(f"run {run.run_id}: {run.run_directory}", markup=False, soft_wrap=True)
    try:
        follow(watch, view, lambda timeout_s: run.wait(timeout=timeout_s, raise_error=False), output=to_files)
    finally:
        view.close()


def _report_failure(run: Run) -> bool:
    """Prints the failure of the run, its traceback last; returns whether there was one."""
    try:
        run.wait()
    except TopologyError as error:
        typer.echo(f"\nerror: {error}", err=True)
        return True
    except Exception as error:  # noqa: BLE001 - a node that ran as a thread: its own exception, of any type
        typer.echo(f"\nerror: {type(error).__name__}: {error}\n", err=True)
        traceback.print_exception(error, file=sys.stderr)
        return True
    return False
