"""Settings of an agent from text: what `--set key=value` may say, and what each value becomes.

An agent is a function that returns a Program. With one parameter, annotated with a dataclass, its settings are the
fields of that dataclass; otherwise they are its parameters.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from launch.text_values import convert
from topology.errors import ProgramError

__all__ = ["REQUIRED", "Setting", "Settings", "nearest", "parse_assignments"]


@final
class _Required:
    def __repr__(self) -> str:
        return "(required)"


REQUIRED = _Required()
"""Default of a setting that has none."""


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
        name: what the command calls it.
    """

    function: Callable[..., object]
    fields: tuple[Setting, ...]
    config: type[Any] | None
    name: str = "AGENT"

    @classmethod
    def of(cls, function: Callable[..., object], name: str = "AGENT") -> Settings:
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
            return cls(function, tuple(_of_dataclass(first)), first, name)
        return cls(function, tuple(_of_parameters(parameters, hints)), None, name)

    def parse(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """Values by name.

        Raises:
            ProgramError: an unknown setting, a value of the wrong type, a required setting that is missing, and what
                the config says of the others: all that is wrong.
        """
        known = {field.name: field for field in self.fields}
        values: dict[str, Any] = {}
        faults: list[str] = []
        for name, text in texts.items():
            if name not in known:
                faults.append(f"unknown setting {name!r}{nearest(name, known)}")
                continue
            try:
                values[name] = known[name].convert(text)
            except ProgramError as error:
                faults.append(str(error))
        missing = [field.name for field in self.fields if field.default is REQUIRED and field.name not in texts]
        if missing:
            faults.append(f"missing settings: {', '.join(missing)}. Give each as --set {missing[0]}=VALUE")
        if faults:
            faults += self._faults_of_config(values)
            raise ProgramError(self._text(faults), faults=tuple(faults))
        return values

    def _faults_of_config(self, values: Mapping[str, Any]) -> list[str]:
        """What the config says of these values, while others are wrong."""
        required = {field.name for field in self.fields if field.default is REQUIRED}
        if self.config is None or required - set(values):
            return []
        try:
            self.config(**values)
        except ProgramError as error:
            return list(error.faults or [str(error)])
        except ValueError as error:
            return [str(error)]
        return []

    def _text(self, faults: Sequence[str]) -> str:
        where = f"`topology list {self.name}` shows all settings" if self.fields else "This agent has no settings"
        if len(faults) == 1:
            return f"{faults[0]}. {where}"
        lines = "".join(f"\n  - {fault}" for fault in faults)
        return f"{len(faults)} settings are wrong:{lines}\n{where}"

    def values(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """Values by name, defaults included. Raises like `parse`."""
        defaults = {field.name: field.default for field in self.fields if field.default is not REQUIRED}
        return {**defaults, **self.parse(texts)}

    def make_config(self, texts: Mapping[str, str]) -> Any:
        """The config object with these settings, or None for an agent without one. Raises like `parse`."""
        return None if self.config is None else self.config(**self.parse(texts))

    def call(self, texts: Mapping[str, str]) -> object:
        """What the agent returns with these settings. Raises like `parse`, and whatever the agent raises."""
        if self.config is not None:
            return self.function(self.make_config(texts))
        return self.function(**self.parse(texts))

    def call_beside(self, function: Callable[..., object], texts: Mapping[str, str]) -> object:
        """What `function` returns that is told what the agent is told, as far as it has parameters for that.

        It gets the config object where the agent has one, else the settings that it has parameters for, their defaults
        included. One without parameters gets nothing.

        Raises:
            ProgramError: it has other parameters; or as `parse`. And whatever it raises itself.
        """
        values = self.values(texts)
        parameters = inspect.signature(function).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        arguments: tuple[object, ...] = ()
        keywords = {name: value for name, value in values.items() if takes_all or name in parameters}
        if self.config is not None:
            keywords = {}
            arguments = (self.make_config(texts),) if parameters else ()
        try:
            inspect.signature(function).bind(*arguments, **keywords)
        except TypeError as error:
            offer = f"the settings {', '.join(values)}" if values else "nothing: the agent has no settings"
            what = f"the {self.config.__name__} of the agent" if self.config is not None else offer
            name = getattr(function, "__name__", repr(function))
            raise ProgramError(f"{name}{inspect.signature(function)} can be given {what}: {error}") from None
        return function(*arguments, **keywords)


def _hints(owner: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(owner)
    except (NameError, TypeError, AttributeError):
        # A name imported for type checkers only: those settings are read as literals.
        return dict(inspect.get_annotations(owner)) if callable(owner) and hasattr(owner, "__annotations__") else {}


def _of_dataclass(config: type[Any]) -> Iterable[Setting]:
    hints, docs = _hints(config), _inherited_docs(config)
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


def _inherited_docs(config: type[Any]) -> dict[str, str]:
    """What the docstrings of a class and of those it is made from say of its attributes; the nearest wins."""
    docs: dict[str, str] = {}
    for owner in reversed(config.__mro__):
        docs |= _attribute_docs(inspect.cleandoc(owner.__dict__.get("__doc__") or ""))
    return docs


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
    wrong = []
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not (key.strip() and equals):
            wrong.append(assignment)
        texts[key.strip()] = value.strip()
    if wrong:
        raise ProgramError(f"--set takes key=value, got {', '.join(map(repr, wrong))}")
    return texts


def nearest(name: str, known: Collection[str]) -> str:
    """` (did you mean 'x'?)` for the names nearest to `name`; "" when none is near."""
    matches = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(map(repr, matches))}?)" if matches else ""
