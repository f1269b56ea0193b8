"""Settings of an agent from text: what `--set key=value` may say, and what each value becomes.

An agent is a function that returns a Program. With one parameter, annotated with a dataclass, its settings are the
fields of that dataclass; otherwise they are its parameters.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import enum
import inspect
import pathlib
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from topology.errors import ProgramError

__all__ = ["REQUIRED", "Setting", "Settings", "convert", "describe_type", "nearest", "parse_assignments"]


@final
class _Required:
    def __repr__(self) -> str:
        return "(required)"


REQUIRED = _Required()
"""Default of a setting that has none."""

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


@final
@dataclass(frozen=True, kw_only=True)
class Setting:
    """One thing that can be set: its name, type, default (or `REQUIRED`) and what its owner says of it."""

    name: str
    annotation: Any
    default: Any
    doc: str = ""

    def convert(self, text: str) -> Any:
        """The value that `text` stands for.

        Raises:
            ProgramError: it is not of the setting's type.
        """
        try:
            return convert(text, self.annotation)
        except ValueError as error:
            raise ProgramError(f"setting {self.name}: expected {error}, got {text!r}") from None


@final
@dataclass(frozen=True)
class Settings:
    """What an agent can be told, and how to call it with that.

    Attributes:
        function: the agent.
        fields: its settings, in order.
        config: the dataclass it takes as its one parameter; None when the settings are its parameters.
    """

    function: Callable[..., object]
    fields: tuple[Setting, ...]
    config: type[Any] | None

    @classmethod
    def of(cls, function: Callable[..., object]) -> Settings:
        """Reads the settings from the signature.

        Raises:
            ProgramError: the callable has no signature that can be read.
        """
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError) as error:
            raise ProgramError(f"{function!r} cannot be an agent, its signature cannot be read: {error}") from error
        hints = _hints(function)
        first = hints.get(parameters[0].name) if len(parameters) == 1 else None
        if isinstance(first, type) and dataclasses.is_dataclass(first):
            return cls(function, tuple(_of_dataclass(first)), first)
        return cls(function, tuple(_of_parameters(parameters, hints)), None)

    def parse(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """Values by name.

        Raises:
            ProgramError: an unknown setting, a value of the wrong type, a required setting that is missing.
        """
        known = {field.name: field for field in self.fields}
        for name in texts:
            if name not in known:
                raise ProgramError(f"unknown setting {name!r}{nearest(name, known)}. {self._listing()}")
        missing = [field.name for field in self.fields if field.default is REQUIRED and field.name not in texts]
        if missing:
            raise ProgramError(f"missing settings: {', '.join(missing)}. Give each as --set {missing[0]}=VALUE")
        return {name: known[name].convert(text) for name, text in texts.items()}

    def _listing(self) -> str:
        if not self.fields:
            return "This agent has no settings"
        return "The settings are: " + ", ".join(field.name for field in self.fields)

    def make_config(self, texts: Mapping[str, str]) -> Any:
        """The config object with these settings, or None for an agent without one. Raises like `parse`."""
        return None if self.config is None else self.config(**self.parse(texts))

    def call(self, texts: Mapping[str, str]) -> object:
        """What the agent returns with these settings. Raises like `parse`, and whatever the agent raises."""
        if self.config is not None:
            return self.function(self.make_config(texts))
        return self.function(**self.parse(texts))


def _hints(owner: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(owner)
    except (NameError, TypeError, AttributeError):
        # A name imported for type checkers only: those settings are read as literals.
        return dict(inspect.get_annotations(owner)) if callable(owner) and hasattr(owner, "__annotations__") else {}


def _of_dataclass(config: type[Any]) -> Iterable[Setting]:
    hints, docs = _hints(config), _attribute_docs(inspect.getdoc(config) or "")
    for field in dataclasses.fields(config):
        if not field.init:
            continue
        default = field.default
        if default is dataclasses.MISSING:
            factory = field.default_factory
            default = REQUIRED if factory is dataclasses.MISSING else factory()
        annotation = hints.get(field.name, Any)
        yield Setting(name=field.name, annotation=annotation, default=default, doc=docs.get(field.name, ""))


def _of_parameters(parameters: Iterable[inspect.Parameter], hints: Mapping[str, Any]) -> Iterable[Setting]:
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        default = REQUIRED if parameter.default is parameter.empty else parameter.default
        yield Setting(name=parameter.name, annotation=hints.get(parameter.name, Any), default=default)


def _attribute_docs(docstring: str) -> dict[str, str]:
    """The entries of a Google-style `Attributes:` (or `Args:`) section, each on one line."""
    section = re.search(r"^(?:Attributes|Args):\n((?:[ \t]+.*\n?|\n)+)", docstring, re.MULTILINE)
    docs: dict[str, str] = {}
    name = ""
    for line in inspect.cleandoc(section[1]).splitlines() if section else ():
        start = re.match(r"(\w+)(?: \([^)]*\))?: ?(.*)", line)
        if start:
            name = start[1]
            docs[name] = start[2].strip()
        elif name:
            docs[name] = f"{docs[name]} {line.strip()}".strip()
    return docs


def parse_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """`key=value` texts as a dict; the last one of a key wins.

    Raises:
        ProgramError: a text without `=`.
    """
    texts: dict[str, str] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not (key.strip() and equals):
            raise ProgramError(f"--set takes key=value, got {assignment!r}")
        texts[key.strip()] = value.strip()
    return texts


def nearest(name: str, known: Collection[str]) -> str:
    """` (did you mean 'x'?)` for the names nearest to `name`; "" when none is near."""
    matches = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(map(repr, matches))}?)" if matches else ""


def convert(text: str, annotation: Any) -> Any:
    """`text` as a value of the annotated type.

    Example:
        >>> convert("256,256", tuple[int, ...]), convert("none", int | None), convert("1e6", int)
        ((256, 256), None, 1000000)

    Raises:
        ValueError: it is none; the message says what was expected.
    """
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return convert(text, typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return _convert_union(text, annotation)
    if origin is typing.Literal:
        return _choose(text, annotation, {str(value): value for value in typing.get_args(annotation)})
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        members = {name.lower(): member for name, member in annotation.__members__.items()}
        return _choose(text, annotation, {**members, **{str(member.value): member for member in annotation}})
    if (origin or annotation) in (tuple, list, Sequence, frozenset, set):
        return _convert_sequence(text, annotation)
    if annotation in _SCALARS:
        return _SCALARS[annotation](text)
    if annotation is Any or annotation is object or isinstance(annotation, str):
        return _literal(text)
    raise ValueError(f"{describe_type(annotation)}, which cannot be written on a command line")


def _choose(text: str, annotation: Any, values: Mapping[str, Any]) -> Any:
    if text in values:
        return values[text]
    if text.lower() in values:
        return values[text.lower()]
    raise ValueError(describe_type(annotation))


def _convert_union(text: str, annotation: Any) -> Any:
    # str takes any text, so it comes last: `int | str` reads "3" as a number.
    for member in sorted(typing.get_args(annotation), key=lambda member: member is str):
        try:
            return convert(text, member)
        except ValueError:
            continue
    raise ValueError(describe_type(annotation))


def _convert_sequence(text: str, annotation: Any) -> Any:
    origin = typing.get_origin(annotation) or annotation
    make: Callable[[list[Any]], Any] = tuple if origin is Sequence else origin
    parts = [part.strip() for part in text.strip().strip("()[]{}").split(",") if part.strip()]
    kinds = [kind for kind in typing.get_args(annotation) if kind is not Ellipsis]
    fixed = origin is tuple and kinds and Ellipsis not in typing.get_args(annotation)
    if fixed and len(parts) != len(kinds):
        raise ValueError(f"{describe_type(annotation)} ({len(kinds)} values, comma-separated)")
    each = kinds if fixed else (kinds or [Any]) * len(parts)
    try:
        return make([convert(part, kind) for part, kind in zip(parts, each, strict=True)])
    except ValueError:
        raise ValueError(f"{describe_type(annotation)} (values separated by commas)") from None


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = _float(text) if re.fullmatch(r"[+-]?[\d.]+[eE]\+?\d+", text) else 0.5  # 1e6 is an int to people
    if not number.is_integer():
        raise ValueError("int")
    return int(number)


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("float") from None


def _bool(text: str) -> bool:
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    raise ValueError("bool (true or false)")


def _none(text: str) -> None:
    if text.lower() not in ("none", "null", ""):
        raise ValueError("None")


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


_SCALARS: dict[Any, Callable[[str], Any]] = {
    int: _int,
    float: _float,
    bool: _bool,
    str: str,
    type(None): _none,
    pathlib.Path: pathlib.Path,
}


def describe_type(annotation: Any) -> str:
    """A type as people write it: `int`, `float | None`, `tuple[int, ...]`, `one of 'a', 'b'`."""
    if typing.get_origin(annotation) is typing.Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(annotation)))
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return "one of " + ", ".join(repr(member.value) for member in annotation)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " | ".join(describe_type(member) for member in typing.get_args(annotation))
    if annotation is type(None):
        return "None"
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__name__
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", str(annotation))
