"""The error tree: each class survives pickling with its fields, and says what it has to say."""

from __future__ import annotations

import copy
import pickle

import pytest

from topology import errors


def subclasses(cls):
    return [cls, *(each for child in cls.__subclasses__() for each in subclasses(child))]


OWN = sorted(
    {cls for cls in subclasses(errors.TopologyError) if cls.__module__ == errors.__name__}, key=lambda cls: cls.__name__
)
FIELDS = {
    errors.NodeFailed: {"label": "actor", "index": 3, "exit_code": -9, "remote_traceback": "Traceback ...\n"},
    errors.RemoteError: {"type_name": "pkg.Odd", "remote_traceback": "Traceback ..."},
    errors.StaleError: {"age_s": 4.5},
    errors.ProgramError: {"faults": ("one", "two")},
    errors.SerializationError: {"faults": ("one",)},
}


def test_all_classes_are_public():
    assert {cls.__name__ for cls in OWN} == set(errors.__all__)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("cls", OWN)
def test_an_error_survives_pickling_with_its_fields(cls, protocol):
    fields = FIELDS.get(cls, {})
    error = cls("what was asked", **fields)
    error.extra = [1]
    error.add_note("a note")
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is cls
    assert again.args == ("what was asked",)
    assert str(again) == str(error)
    assert {name: getattr(again, name) for name in fields} == fields
    assert (again.extra, again.__notes__) == ([1], ["a note"])
    assert str(copy.copy(error)) == str(error)


def test_an_error_of_a_user_survives_pickling():
    again = pickle.loads(pickle.dumps(TwoArguments("left", right="right")))
    assert (again.left, again.right, again.args) == ("left", "right", ("left and right",))


class TwoArguments(errors.ReplayError):
    def __init__(self, left, *, right):
        super().__init__(f"{left} and {right}")
        self.left, self.right = left, right


@pytest.mark.parametrize(
    ("cls", "base"),
    [
        (errors.ProgramError, ValueError),
        (errors.SerializationError, errors.ProgramError),
        (errors.LaunchError, RuntimeError),
        (errors.ConnectionBroken, ConnectionError),
        (errors.DeadlineExceeded, TimeoutError),
        (errors.ProgramStopped, errors.CourierClosed),
        (errors.ReplayDeadlineExceeded, errors.ReplayError),
        (errors.ReplayDeadlineExceeded, TimeoutError),
        (errors.TableNotFound, KeyError),
    ],
)
def test_errors_are_caught_as_what_they_are(cls, base):
    assert issubclass(cls, base)


def test_a_failed_node_prints_its_traceback_last():
    error = errors.NodeFailed("actor/3 failed", label="actor", index=3, remote_traceback="Traceback:\nKeyError: 1\n")
    assert str(error) == "actor/3 failed\n\nTraceback:\nKeyError: 1"
    assert str(errors.NodeFailed("actor/3 failed", label="actor", index=3)) == "actor/3 failed"


def test_a_missing_table_is_not_quoted():
    assert str(errors.TableNotFound("no table 'x'")) == "no table 'x'"
