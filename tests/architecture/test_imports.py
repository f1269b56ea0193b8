"""What may be loaded when: the doors stay light, and their names are all there."""

from __future__ import annotations

import subprocess
import sys

import pytest

import topology

HEAVY = {"numpy", "jax", "flax", "optax", "gymnasium", "matplotlib", "rich", "typer", "tensorflow", "absl"}


def loaded_by(statement: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{statement}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement", ["import topology", "import topology.nodes.courier.node", "import launch", "import launch.child"]
)
def test_import_stays_light(statement: str) -> None:
    assert not loaded_by(statement) & HEAVY


def test_replay_needs_neither_jax_nor_tensorflow() -> None:
    assert not loaded_by("import topology.nodes.replay") & {"jax", "tensorflow", "google"}


def test_every_public_name_is_there() -> None:
    for name in {*topology.__all__, *dir(topology)}:
        assert getattr(topology, name) is not None or name.startswith("__"), name
