"""Provides the modules before pytest collects: `pytest -p topology.compat.pytest_plugin`."""

from __future__ import annotations

from topology.compat.finder import install

install()
