"""Threads and devices of a node, as they are in a process of its own."""

import os
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
context = NodeContext(label="actor", index=0, launch_type={launch_type!r})
prepare_jax(context, accelerator={accelerator}, memory_fraction={fraction}, all_threads={all_threads})
platforms = jax.config.jax_platforms if jax.config.jax_platforms != before else "as it was"
print(os.environ["XLA_FLAGS"], "|", platforms, "|", jax.devices()[0].platform)
print(*map(os.environ.get, ["PJRT_NPROC", "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"]))
"""

TWO_DEVICES = "--xla_force_host_platform_device_count=2"


def run(**values):
    code = CODE.format(**{"fraction": None, "flags": "", "all_threads": False} | values)
    environment = os.environ | {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9"}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, check=True, timeout=50, capture_output=True, text=True, env=environment)
    return result.stdout.splitlines()


@pytest.mark.parametrize(
    ("flags", "launch_type", "accelerator", "expected", "threads"),
    [
        ("", "local_mp", False, "--xla_cpu_multi_thread_eigen=false | cpu | cpu", "1"),
        ("", "local_mp", True, "--xla_cpu_multi_thread_eigen=false | as it was | cpu", "1"),
        ("", "local_mt", False, "--xla_cpu_multi_thread_eigen=false | as it was | cpu", "None"),
        ("--xla_cpu_multi_thread_eigen=true", "local_mp", False, "--xla_cpu_multi_thread_eigen=true | cpu | cpu", "1"),
        (TWO_DEVICES, "local_mp", False, f"{TWO_DEVICES} --xla_cpu_multi_thread_eigen=false | cpu | cpu", "None"),
    ],
)
def test_one_thread_and_no_accelerator_unless_told_otherwise(flags, launch_type, accelerator, expected, threads):
    lines = run(flags=flags, launch_type=launch_type, accelerator=accelerator)
    assert lines == [expected, f"{threads} None 0.9"]


def test_all_threads_for_those_who_are_given_them():
    assert run(launch_type="local_mp", accelerator=False, all_threads=True) == [" | cpu | cpu", "None None 0.9"]


def test_a_process_that_shares_an_accelerator_takes_its_part_of_the_memory():
    assert run(launch_type="local_mp", accelerator=True, fraction=0.25)[1] == "1 0.25 None"
    assert run(launch_type="local_mp", accelerator=False, fraction=0.25)[1] == "1 None 0.9"
