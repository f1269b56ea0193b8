"""A guard around every test: whoever leaves a thread, a child process, a socket or shared memory behind fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from topology.testing import no_leaks


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    with no_leaks():
        yield
