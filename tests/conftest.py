"""A guard around every test: whoever leaves a thread, a child process, a socket or shared memory behind fails.

And Ctrl-C as a terminal has it: a shell starts what it puts in the background with SIGINT ignored, and so would all the
scripts be that the tests press it for.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import hypothesis
import pytest

from topology.testing import no_leaks

hypothesis.settings.register_profile("tests", deadline=None)  # pytest's is the deadline: examples wait for the machine
hypothesis.settings.load_profile("tests")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    with no_leaks():
        yield
