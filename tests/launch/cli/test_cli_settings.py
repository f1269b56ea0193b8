"""Settings from text."""

from __future__ import annotations

import contextlib
import enum
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.settings import REQUIRED, Settings, parse_assignments
from launch.text_values import convert, describe_type
from topology.errors import ProgramError


class Color(enum.Enum):
    RED = "r"
    BLUE = 2


@pytest.mark.parametrize(
    ("text", "annotation", "value"),
    [
        ("3", int, 3),
        ("1_000", int, 1000),
        ("1e6", int, 1_000_000),
        ("-2", int, -2),
        ("1e-3", float, 1e-3),
        ("True", bool, True),
        ("off", bool, False),
        ("3", str, "3"),
        ("", str, ""),
        ("none", int | None, None),
        ("3", int | None, 3),
        ("3", str | int, 3),
        ("x", str | int, "x"),
        ("None", str | None, None),
        ("256,256", tuple[int, ...], (256, 256)),
        ("(256, 128)", tuple[int, ...], (256, 128)),
        ("", tuple[int, ...], ()),
        ("1,x", tuple[int, str], (1, "x")),
        ("1,2", list[float], [1.0, 2.0]),
        ("1,2", Sequence[int], (1, 2)),
        ("fast", Literal["fast", "slow"], "fast"),
        ("2", Literal[1, 2], 2),
        ("red", Color, Color.RED),
        ("2", Color, Color.BLUE),
        ("/tmp/x", pathlib.Path, pathlib.Path("/tmp/x")),
        ("3", Annotated[int, "steps"], 3),
        ("{'a': 1}", Any, {"a": 1}),
        ("catch", Any, "catch"),
        ("catch", str | Callable[[], object], "catch"),
    ],
)
def test_text_becomes_a_value_of_the_annotated_type(text: str, annotation: Any, value: Any) -> None:
    converted = convert(text, annotation)
    assert converted == value
    assert type(converted) is type(value)


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        ("3.5", int, "int"),
        ("1e-3", int, "int"),
        ("abc", float, "float"),
        ("maybe", bool, "bool (true or false)"),
        ("x", int | None, "int | None"),
        ("a,b", tuple[int, ...], "tuple[int, ...] (values separated by commas)"),
        ("1,2,3", tuple[int, int], "tuple[int, int] (2 values, comma-separated)"),
        ("medium", Literal["fast", "slow"], "one of 'fast', 'slow'"),
        ("green", Color, "one of 'r', 2"),
        ("print", Callable[[], int], "cannot be written on a command line"),
    ],
)
def test_text_of_another_type_is_refused_with_what_was_expected(text: str, annotation: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=r".*") as caught:
        convert(text, annotation)
    assert expected in str(caught.value)


@given(st.integers())
def test_every_int_survives(value: int) -> None:
    assert convert(str(value), int) == value


@given(st.floats(allow_nan=False))
def test_every_float_survives(value: float) -> None:
    assert convert(repr(value), float) == value


@given(st.lists(st.integers()))
def test_every_tuple_of_ints_survives(values: list[int]) -> None:
    assert convert(",".join(map(str, values)), tuple[int, ...]) == tuple(values)


@given(st.text())
def test_no_text_makes_a_union_raise_anything_but_value_errors(text: str) -> None:
    with contextlib.suppress(ValueError):
        convert(text, int | float | bool | None | tuple[int, ...])


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings.

    Attributes:
        steps: how long it runs,
            in actor steps.
        hidden (tuple): layers.
    """

    steps: int
    hidden: tuple[int, ...] = (64, 64)
    names: list[str] = field(default_factory=lambda: ["a"])
    hidden_state: int = field(init=False, default=0)


def agent(config: Config) -> Config:
    return config


def test_the_fields_of_the_dataclass_are_the_settings() -> None:
    settings = Settings.of(agent)
    assert [(f.name, f.default) for f in settings.fields] == [
        ("steps", REQUIRED),
        ("hidden", (64, 64)),
        ("names", ["a"]),
    ]
    assert [f.doc for f in settings.fields] == ["how long it runs, in actor steps.", "layers.", ""]


def test_the_dataclass_is_built_from_texts() -> None:
    assert Settings.of(agent).call({"steps": "5", "hidden": "8"}) == Config(steps=5, hidden=(8,))


def test_parameters_are_the_settings_of_a_function_without_a_config() -> None:
    def function(steps: int, name: str = "x", *_: int, guess=3, **__: int) -> tuple[object, ...]:  # type: ignore[no-untyped-def]
        return steps, name, guess

    settings = Settings.of(function)
    assert [f.name for f in settings.fields] == ["steps", "name", "guess"]
    assert settings.call({"steps": "2", "guess": "[1]"}) == (2, "x", [1])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"steps": "1", "hiden": "3"}, "unknown setting 'hiden' (did you mean 'hidden'?)"),
        ({"steps": "x"}, "setting steps: expected int, got 'x'"),
        ({"hidden": "3"}, "missing settings: steps. Give each as --set steps=VALUE"),
    ],
)
def test_wrong_settings_say_what_to_do(texts: dict[str, str], message: str) -> None:
    with pytest.raises(ProgramError) as caught:
        Settings.of(agent, "mine").call(texts)
    assert str(caught.value) == f"{message}. `topology list mine` shows all settings"


def test_all_that_is_wrong_is_said_at_once() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Picky:
        size: int = 1
        rate: float = 0.5

        def __post_init__(self) -> None:
            if self.size < 1:
                raise ValueError(f"size={self.size}: at least 1")

    def picky(config: Picky) -> Picky:
        return config

    picky.__annotations__["config"] = Picky  # a local class, which no annotation as text can name
    with pytest.raises(ProgramError) as caught:
        Settings.of(picky, "mine").call({"sise": "3", "size": "0", "rate": "fast"})
    assert str(caught.value).splitlines() == [
        "3 settings are wrong:",
        "  - unknown setting 'sise' (did you mean 'size'?)",
        "  - setting rate: expected float, got 'fast'",
        "  - size=0: at least 1",
        "`topology list mine` shows all settings",
    ]
    assert len(caught.value.faults) == 3


def test_names_for_type_checkers_only_are_read_as_literals() -> None:
    def function(size: NotImported = 1) -> object:  # type: ignore[name-defined]  # noqa: F821
        return size

    assert Settings.of(function).call({"size": "2"}) == 2


def test_assignments() -> None:
    assert parse_assignments(["a=1", "b = x=y", "a=2", "c="]) == {"a": "2", "b": "x=y", "c": ""}


@pytest.mark.parametrize("text", ["a", "=1", ""])
def test_an_assignment_needs_a_key_and_an_equals_sign(text: str) -> None:
    with pytest.raises(ProgramError, match="key=value"):
        parse_assignments([text, "a=1"])


def test_every_wrong_assignment_is_named() -> None:
    with pytest.raises(ProgramError, match="got 'a', 'b'"):
        parse_assignments(["a", "c=1", "b"])


def test_types_are_written_as_people_write_them() -> None:
    assert describe_type(tuple[int, ...] | None) == "tuple[int, ...] | None"
    assert describe_type(Sequence[pathlib.Path]) == "Sequence[Path]"
