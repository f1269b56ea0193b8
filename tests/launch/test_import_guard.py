"""Scripts whose modules are imported again by their nodes; what nodes see of the script."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.import_guard import importing, refuse_while_importing
from topology.errors import ProgramError

RunScript = Callable[..., tuple[int, str]]

LAUNCHES_WHEN_IMPORTED = """
import topology as lp

def work():
    print("worked")

program = lp.Program("chain")
program.add_node(lp.PyNode(work), label="a")
program.add_node(lp.PyNode(work), label="b")
lp.launch(program, "local_mp").wait()
"""


def test_nothing_is_launched_by_an_import() -> None:
    refuse_while_importing()
    with importing("a test did so"), pytest.raises(ProgramError, match=r"while a test did so.*__main__"):
        refuse_while_importing()
    refuse_while_importing()


@pytest.mark.parametrize("command", [["-c", "import chain"], ["-m", "launch.cli", "graph", "chain.py:work"]])
def test_a_module_that_launches_does_so_once_at_most(command: list[str], tmp_path: Path) -> None:
    """Its nodes import it by name, and would each start the program again, and so on for ever."""
    (tmp_path / "chain.py").write_text(LAUNCHES_WHEN_IMPORTED)
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{Path(__file__).parents[2]}", "TOPOLOGY_RUNS": str(tmp_path / "runs")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "lp.launch() was called while" in done.stderr
    runs = tmp_path / "runs"
    assert len(list(runs.iterdir()) if runs.exists() else []) <= 1


def test_a_script_that_launches_in_its_last_line_works(run_script: RunScript) -> None:
    assert run_script(LAUNCHES_WHEN_IMPORTED)[0] == 0


def test_tracebacks_show_the_file_and_the_line_of_the_script(run_script: RunScript, tmp_path: Path) -> None:
    code, output = run_script(
        """
        def work():
            raise ValueError("on purpose")  # this very line

        program = lp.make_program(lp.PyNode(work))
        lp.launch(program, "local_mp").wait()
        """
    )
    assert code == 1
    assert f'File "{tmp_path / "script.py"}", line 4, in work' in output
    assert "# this very line" in output


@pytest.mark.parametrize("kind", ["local_mt", "local_mp"])
def test_nodes_see_the_arguments_of_the_script(kind: str, run_script: RunScript) -> None:
    code, output = run_script(
        """
        import sys

        def work():
            print("arguments", sys.argv[1:])

        lp.launch(lp.make_program(lp.PyNode(work)), sys.argv[1]).wait()
        """,
        kind,
        "--rate=3",
    )
    assert code == 0
    assert f"arguments ['{kind}', '--rate=3']" in output
