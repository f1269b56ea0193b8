"""Every code block of the README and of docs/ runs.

`python` blocks of one document run top to bottom as one script, but for those after the comment `<!-- file: NAME -->`:
these are files, which the commands of the document run. In `console` blocks every line that starts with `$ `
is a command that must succeed; those after the comment `<!-- slow -->` take minutes. A block after the comment
`<!-- main-job -->` or `<!-- tests -->` sets up a machine: the file .ci/run runs those two.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?:^<!-- (?P<mark>[^\n]*?) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
SET_UP = ("main-job", "tests")
SHOWN = {"mermaid", "text", "toml"}  # pictures, what a program printed, settings
TIMEOUT_S = 240
SLOW_TIMEOUT_S = 1800


def blocks(document: Path, kind: str, *, slow: bool = False) -> list[str]:
    found = [m for m in BLOCK.finditer(document.read_text()) if m["kind"] == kind and m["mark"] not in SET_UP]
    return [m["text"] for m in found if (m["mark"] == "slow") is slow and not (m["mark"] or "").startswith("file: ")]


def write_files(document: Path, folder: Path) -> list[str]:
    """The files that the document asks the reader to write; their names."""
    found = [m for m in BLOCK.finditer(document.read_text()) if (m["mark"] or "").startswith("file: ")]
    for match in found:
        (folder / match["mark"].removeprefix("file: ")).write_text(match["text"])
    return [match["mark"].removeprefix("file: ") for match in found]


def environment(folder: Path) -> dict[str, str]:
    """The test environment's own commands first; runs are kept in `folder`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "TOPOLOGY_RUNS": str(folder / "runs"), "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_block_is_of_a_kind_that_runs(document: Path) -> None:
    unknown = {m["kind"] for m in BLOCK.finditer(document.read_text())} - {"python", "console", "bash"} - SHOWN
    assert not unknown, f"{document.name} has code blocks of a kind no test runs: {unknown}"
    set_up = [m["mark"] for m in BLOCK.finditer(document.read_text()) if m["kind"] == "bash"]
    assert set(set_up) <= set(SET_UP), f"{document.name}: write commands in `console` blocks, found bash: {set_up}"


@pytest.mark.timeout(TIMEOUT_S + 10)
@pytest.mark.parametrize("document", [d for d in DOCUMENTS if blocks(d, "python")], ids=lambda path: path.name)
def test_python_blocks_run(document: Path, tmp_path: Path) -> None:
    write_files(document, tmp_path)
    script = tmp_path / f"{document.stem}.py"
    script.write_text("\n".join(blocks(document, "python")))
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{document.name}:\n{done.stdout}\n{done.stderr}"


@pytest.mark.timeout(TIMEOUT_S + 10)
@pytest.mark.parametrize("document", [d for d in DOCUMENTS if blocks(d, "console")], ids=lambda path: path.name)
def test_console_commands_succeed(document: Path, tmp_path: Path) -> None:
    commands = "\n".join(blocks(document, "console"))
    names = write_files(document, tmp_path)
    imports = "\n".join((tmp_path / name).read_text() for name in names)
    unused = [name for name in names if name not in commands and f"from {Path(name).stem} import" not in imports]
    assert not unused, f"files that no command runs, and no other file imports: {unused}"
    run_commands(document, tmp_path, slow=False, timeout_s=TIMEOUT_S)


@pytest.mark.slow
@pytest.mark.timeout(SLOW_TIMEOUT_S + 10)
@pytest.mark.parametrize("document", [d for d in DOCUMENTS if blocks(d, "console", slow=True)], ids=lambda p: p.name)
def test_slow_console_commands_succeed(document: Path, tmp_path: Path) -> None:
    write_files(document, tmp_path)
    run_commands(document, tmp_path, slow=True, timeout_s=SLOW_TIMEOUT_S)


def run_commands(document: Path, folder: Path, *, slow: bool, timeout_s: float) -> None:
    texts = blocks(document, "console", slow=slow)
    for command in [line[2:] for text in texts for line in text.splitlines() if line.startswith("$ ")]:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment(folder),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"{document.name}: {command}\n{done.stdout}\n{done.stderr}"


def test_the_picture_in_the_readme_is_the_program() -> None:
    from topology.agents.dqn.config import DQNConfig
    from topology.agents.dqn.program import dqn

    assert (ROOT / "docs/images/dqn.svg").read_text() == dqn(DQNConfig()).graph().to_svg(), (
        "run: topology graph dqn --format svg --output docs/images/dqn.svg"
    )
