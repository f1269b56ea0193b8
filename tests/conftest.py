"""A guard around every test: whoever leaves a thread, a child process, a socket or shared memory behind fails.

And Ctrl-C and Ctrl-\\ as a terminal has them: a shell starts what it puts in the background with both ignored, and so
would all the scripts be that the tests press them for.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import hypothesis
import pytest

from launch import signals
from topology.testing import no_leaks

hypothesis.settings.register_profile("tests", deadline=None)  # pytest's is the deadline: examples wait for the machine
hypothesis.settings.load_profile("tests")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    try:
        with no_leaks():
            yield
    finally:
        for run in signals.active_runs():  # of a test that failed: it must not take the next ones with it
            run.interrupt("the test is over", now=True)
