"""Threads and devices of a node, as they are in a process of its own."""

import subprocess
import sys

import pytest

CODE = """
import os
os.environ["XLA_FLAGS"] = {flags!r}
from topology.agents.core.devices import prepare_jax
from topology.context import NodeContext
import jax
before = jax.config.jax_platforms
prepare_jax(NodeContext(label="actor", index=0, launch_type={launch_type!r}), accelerator={accelerator})
platforms = jax.config.jax_platforms if jax.config.jax_platforms != before else "as it was"
print(os.environ["XLA_FLAGS"], "|", platforms, "|", jax.devices()[0].platform)
"""


@pytest.mark.parametrize(
    ("flags", "launch_type", "accelerator", "expected"),
    [
        ("", "local_mp", False, "--xla_cpu_multi_thread_eigen=false | cpu | cpu"),
        ("", "local_mp", True, "--xla_cpu_multi_thread_eigen=false | as it was | cpu"),
        ("", "local_mt", False, "--xla_cpu_multi_thread_eigen=false | as it was | cpu"),
        ("--xla_cpu_multi_thread_eigen=true", "local_mp", False, "--xla_cpu_multi_thread_eigen=true | cpu | cpu"),
    ],
)
def test_one_thread_and_no_accelerator_unless_told_otherwise(flags, launch_type, accelerator, expected):
    code = CODE.format(flags=flags, launch_type=launch_type, accelerator=accelerator)
    result = subprocess.run([sys.executable, "-c", code], check=True, timeout=50, capture_output=True, text=True)
    assert result.stdout.strip() == expected
