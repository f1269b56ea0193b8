"""dm-acme as it is on PyPI, run on today's packages in an environment of its own, made from the extra `acme`.

$TOPOLOGY_ACME_PYTHON names the Python of an environment that has them already; otherwise one is made, which takes
minutes, as do the programs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
TIMEOUT_S = 1200


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has the extra `acme`, and dm-acme without its pins."""
    ready = os.environ.get("TOPOLOGY_ACME_PYTHON")
    if ready:
        return ready
    folder = tmp_path_factory.mktemp("acme")
    base = shutil.which("python3.12") or sys.executable
    subprocess.run([base, "-m", "venv", folder], check=True, timeout=300)
    found = folder / "bin" / "python"
    install = [found, "-m", "pip", "install", "--quiet"]
    packages = ([f"{ROOT}[acme]", "pytest", "pytest-timeout"], ["--no-deps", "dm-acme==0.4.0"])
    for arguments in packages:
        subprocess.run([*install, *arguments], check=True, timeout=1800)
    return str(found)


@pytest.fixture
def run(python: str, tmp_path: Path) -> Callable[..., str]:
    """Runs Python with the modules provided, a home of its own, and no home for runs; the output of a good end."""

    def run_python(*arguments: str) -> str:
        environment = {**os.environ, "HOME": str(tmp_path), "TOPOLOGY_RUNS": str(tmp_path / "runs")}
        environment |= {"TOPOLOGY_COMPAT": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"}
        done = subprocess.run(
            [python, *arguments],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    return run_python


@pytest.mark.parametrize("kind", ["local_mt", "local_mp"])
@pytest.mark.parametrize("caches", [0, 1])
@pytest.mark.parametrize(("agent", "steps", "bar"), [("d4pg", 1500, -2.5), ("svg0", 2300, -2.5)])
def test_a_distributed_agent_learns_and_ends_at_its_limit(
    run: Callable[..., str], agent: str, steps: int, bar: float, caches: int, kind: str
) -> None:
    """Random actions return -6, zeros -4, the best 0."""
    flags = (f"--agent={agent}", f"--steps={steps}", f"--caches={caches}", f"--lp_launch_type={kind}")
    output = run(str(PROGRAMS / "acme_distributed.py"), *flags)
    returns = re.search(r"RETURNS of (\d+) episodes: (\S+) at first, (\S+) at last", output)
    assert returns is not None, output
    assert float(returns[3]) > bar, output
    for sign in ("Killed", "did not end within the notice", "left behind"):
        assert sign not in output


def test_the_local_impala_does_not_hang(run: Callable[..., str]) -> None:
    """Acme's own test of it is skipped."""
    assert "OK test_mt" in run(str(PROGRAMS / "acme_impala.py"))


DISTRIBUTED = ["tf/d4pg/agent_distributed_test.py", "tf/svg0_prior/agent_distributed_test.py"]
LOCAL = [f"tf/{name}/agent_test.py" for name in ("dqn", "r2d2", "dmpo", "mpo", "d4pg", "ddpg")]


@pytest.mark.parametrize("file", [*DISTRIBUTED, *LOCAL])
def test_acmes_own_tests(run: Callable[..., str], python: str, file: str) -> None:
    found = [python, "-c", "import acme; print(acme.__path__[0])"]
    place = subprocess.run(
        found, env={**os.environ, "TOPOLOGY_COMPAT": "1"}, capture_output=True, text=True, timeout=300, check=True
    ).stdout.splitlines()[-1]
    assert re.search(r"OK|passed", run(f"{place}/agents/{file}"))
