"""Reverb's names with TensorFlow, in an environment of its own that is made from the extra `tensorflow`.

$TOPOLOGY_TENSORFLOW_PYTHON names the Python of an environment that has it, and the extra `test`, already.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
TESTS = "tests/compat/test_reverb_tensorflow.py"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has both extras."""
    ready = os.environ.get("TOPOLOGY_TENSORFLOW_PYTHON")
    if ready:
        return ready
    folder = tmp_path_factory.mktemp("tensorflow")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=300)
    found = folder / "bin" / "python"
    subprocess.run([found, "-m", "pip", "install", "--quiet", f"{ROOT}[test,tensorflow]"], check=True, timeout=1800)
    return str(found)


def test_datasets_and_client_work_with_the_tensorflow_of_the_extra(python: str, tmp_path: Path) -> None:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "--timeout", "300", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=290",
         f"--junitxml={tmp_path / 'report.xml'}", TESTS],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout.splitlines()[-1], done.stdout
