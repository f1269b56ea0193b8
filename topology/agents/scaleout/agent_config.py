"""Settings of agents of `topology.agents.core`, scaled out."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

from topology.agents.core.config import AgentConfig, ReplayConfig
from topology.agents.core.distributed import DistributedAgent
from topology.agents.scaleout.config import ScaleOutSettings, Synchronization
from topology.environments import EnvironmentFactory
from topology.errors import ProgramError

__all__ = ["ScaleOutAgentConfig", "load_agent"]

_AGENTS: Mapping[str, str] = {
    "dmpo": "topology.agents.dmpo.program:DMPO",
    "dqn": "topology.agents.dqn.program:DQN",
    "impala": "topology.agents.impala.program:IMPALA",
    "madqn": "topology.agents.madqn.program:MADQN",
    "r2d2": "topology.agents.r2d2.program:R2D2",
}
_OURS = {
    "environment": "environment",
    "num_actors": "num_workers",
    "environments_per_actor": "environments_per_worker",
    "seed": "seed",
    "max_actor_steps": "max_steps",
}
"""Settings of agents that these have, too; by what they are called here."""


@final
@dataclass(frozen=True, kw_only=True)
class ScaleOutAgentConfig(ScaleOutSettings):
    """Settings of an agent that is scaled out; see also `ScaleOutSettings`.

    In SYNC rounds are whole episodes. What is stored are items of the agent's replay table (transitions, sequences);
    they are what `memory_max_steps` counts. The trainer has the table: an agent with a queue (IMPALA) learns in SYNC
    from exactly the newest policy, one with a replay learns from draws of what rounds have brought.

    Attributes:
        agent: dmpo, dqn, impala, madqn, r2d2, or where a `DistributedAgent` of yours is, as module:Class.
        agent_settings: settings of that agent, each as NAME=VALUE, separated by commas.
        checkpoint_replay: whether the trainer's replay table is saved with each policy, so that a trainer that is
            started again goes on with it: as large as the table is. Without, it begins with an empty one.
    """

    environment: str = "catch"
    synchronization: Synchronization = Synchronization.ASYNC
    environments_per_worker: int = 1
    num_steps: int = 256
    share_steps: int = 32
    share_episodes: int = 1
    memory_max_steps: int = 1024
    max_steps: int | None = 50_000
    agent: str = "dqn"
    agent_settings: tuple[str, ...] = ()
    checkpoint_replay: bool = False

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        for name in ("normalise_observations", "normalise_rewards"):
            if getattr(self, name):
                yield f"{name}: an agent of its own normalises by itself, if at all; leave it out"
        if self.synchronization is Synchronization.SYNC:
            if self.num_episodes is None:
                yield "num_episodes: rounds of this agent are whole episodes; say how many make one"
            if self.environments_per_worker > 1:
                yield f"environments_per_worker={self.environments_per_worker}: 1 in SYNC, whose rounds are episodes"
        try:
            _load_config(self)
        except ProgramError as error:
            yield from error.faults or (str(error),)


def load_agent(
    config: ScaleOutAgentConfig, environment_factory: EnvironmentFactory | None = None
) -> DistributedAgent[Any]:
    """The agent with its settings. Imports no JAX.

    Raises:
        ProgramError: there is no such agent, or its environment does not fit.
    """
    return _load_class(config.agent)(_load_config(config), environment_factory)


def _load_class(agent: str) -> type[DistributedAgent[Any]]:
    module, _, name = _AGENTS.get(agent, agent).partition(":")
    try:
        found = getattr(importlib.import_module(module), name) if name else None
    except (ImportError, AttributeError) as error:
        raise ProgramError(f"agent={agent!r} cannot be loaded: {error}") from error
    if not (isinstance(found, type) and issubclass(found, DistributedAgent)):
        raise ProgramError(
            f"agent={agent!r}: one of {', '.join(sorted(_AGENTS))}, or a DistributedAgent as module:Class"
        )
    return found


def _load_config(config: ScaleOutAgentConfig) -> AgentConfig:
    kind = _config_class(_load_class(config.agent))
    fields = {field.name: field for field in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    faults = []
    for name, text in _assignments(config.agent_settings):
        if name in _OURS:
            faults.append(f"agent_settings: {name} is {_OURS[name]} here")
        elif name not in fields:
            faults.append(f"agent_settings: {config.agent} has no setting {name!r}; `topology list {config.agent}`")
        else:
            values[name] = _value(text, fields[name].default)
    if not faults:
        ours = {name: getattr(config, mine) for name, mine in _OURS.items()}
        made = kind(**{**values, **ours})
        if isinstance(made, ReplayConfig) and made.samples_per_insert is None:
            faults.append("agent_settings: samples_per_insert says when the trainer's turn is; None it cannot be here")
        if not faults:
            return made
    raise ProgramError("; ".join(faults), faults=tuple(faults))


def _config_class(agent: type[DistributedAgent[Any]]) -> type[AgentConfig]:
    for owner in agent.__mro__:
        for base in getattr(owner, "__orig_bases__", ()):
            for argument in typing.get_args(base):
                if isinstance(argument, type) and issubclass(argument, AgentConfig):
                    return argument
    raise ProgramError(
        f"{agent.__name__} does not say which settings it has: derive it from DistributedAgent[Settings]"
    )


def _assignments(texts: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Names and values. A part without `=` belongs to the one before it: `hidden_sizes=64,64` was cut at its comma."""
    joined: list[str] = []
    for text in texts:
        if "=" in text or not joined:
            joined.append(text)
        else:
            joined[-1] += f",{text}"
    for text in joined:
        name, equals, value = text.partition("=")
        if not (equals and name.strip()):
            raise ProgramError(f"agent_settings: each is NAME=VALUE, got {text!r}")
        yield name.strip(), value.strip()


def _value(text: str, default: Any) -> Any:
    try:
        value = ast.literal_eval({"none": "None", "true": "True", "false": "False"}.get(text.lower(), text))
    except (ValueError, SyntaxError):
        return text
    return (value,) if isinstance(default, tuple) and not isinstance(value, tuple) else value
