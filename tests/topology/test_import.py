"""`import topology` is light: the kernel only."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import json, sys
before = set(sys.modules)
import topology
print(json.dumps(sorted(set(sys.modules) - before - sys.stdlib_module_names)))
"""


def test_the_door_loads_the_kernel_and_cloudpickle_only():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=True, timeout=60)
    loaded = [name for name in json.loads(done.stdout) if name.partition(".")[0] not in sys.stdlib_module_names]
    assert {name.partition(".")[0] for name in loaded} == {"topology", "cloudpickle"}
    assert not [name for name in loaded if name.startswith(("topology.nodes", "topology.agents", "topology.graph"))]
    assert len(loaded) < 30


def test_a_program_is_declared_without_services():
    script = (
        "import sys, topology as lp; lp.make_program(lp.PyNode(print, [1])).graph().to_svg();"
        "assert not {'numpy', 'topology.nodes.courier', 'launch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
