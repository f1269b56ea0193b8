"""What counts as one warning or error in a log."""

from __future__ import annotations

import textwrap

import pytest

from launch.log_records import LogRecords

TRACE = """\
Traceback (most recent call last):
  File "a.py", line 1, in f
    f()
ValueError: wrong
"""
CHAINED = f"""\
{TRACE}
During handling of the above exception, another exception occurred:

{TRACE.replace("ValueError: wrong", "KeyError: 'x'")}"""


def lines_of(text: str) -> list[str]:
    records = LogRecords()
    found = [records.feed(line) for line in textwrap.dedent(text).splitlines()]
    return [finding.line for finding in found if finding is not None]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hello\n", []),
        (TRACE, ["ValueError: wrong"]),
        (TRACE + TRACE, ["ValueError: wrong", "ValueError: wrong"]),
        (TRACE + "hello\n" + TRACE, ["ValueError: wrong", "ValueError: wrong"]),
        (CHAINED, ["KeyError: 'x'"]),
        ("ERROR:root:it broke\n" + TRACE, ["ERROR:root:it broke"]),
        ("ERROR:root:a\nWARNING:root:b\n", ["ERROR:root:a", "WARNING:root:b"]),
        ("W1126 10:00:00 x.py:1] slow\n", ["W1126 10:00:00 x.py:1] slow"]),
        ("RuntimeError: alone\n", ["RuntimeError: alone"]),
        ("Traceback (most recent call last):\n  cut off\n", ["Traceback (most recent call last):"]),
    ],
)
def test_a_record_is_one_whatever_its_lines(text: str, expected: list[str]) -> None:
    assert lines_of(text) == expected
