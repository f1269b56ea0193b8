"""The examples of agents run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name, tmp_path, timeout, *arguments):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        check=False,
        timeout=timeout,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TOPOLOGY_RUNS": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(100)
def test_an_own_environment(tmp_path):
    output = run("dqn_own_environment.py", tmp_path, 90)
    assert "one process, after 6000 steps: mean return 0.96" in output
    assert re.search(r"final evaluation after .*: mean return 0.96 over 10 episodes", output), output


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "arguments", "texts"),
    [
        ("dqn_catch.py", (), ["mean return 1.00 over 100 episodes"]),
        ("r2d2_memory_chain.py", (), ["mean return 1.00 over 100 episodes"]),
        ("impala_catch.py", (), ["over 100 episodes", "policy lag: "]),
        ("dmpo_pendulum.py", ("1500",), ["final evaluation after"]),
        ("madqn_two_step.py", (), ["mixing=none: mean return 7.00", "mixing=qmix: mean return 8.00"]),
    ],
    ids=lambda value: value.removesuffix(".py") if isinstance(value, str) else "",
)
def test_an_agent(tmp_path, name, arguments, texts):
    output = run(name, tmp_path, 280, *arguments)
    assert [text for text in texts if text not in output] == [], output
