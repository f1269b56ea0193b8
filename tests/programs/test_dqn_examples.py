"""The examples of DQN run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name, tmp_path, timeout):
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        check=True,
        timeout=timeout,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TOPOLOGY_RUNS": str(tmp_path)},
    ).stdout


@pytest.mark.timeout(100)
def test_an_own_environment(tmp_path):
    output = run("dqn_own_environment.py", tmp_path, 90)
    assert "one process, after 6000 steps: mean return 0.96" in output
    assert re.search(r"final evaluation after .*: mean return 0.96 over 10 episodes", output), output


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_catch(tmp_path):
    output = run("dqn_catch.py", tmp_path, 180)
    assert "mean return 1.00 over 100 episodes" in output
