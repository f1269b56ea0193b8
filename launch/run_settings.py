"""What a run was launched with, kept in its directory: so that `--resume` goes on with the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

from launch.run_directory import RunDirectory
from topology.errors import LaunchError

__all__ = ["RunSettings"]

_FILE = "settings.json"


@final
@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What was said on the command line, as it was said. Defaults are not in it.

    Attributes:
        agent: its name, or where it is.
        settings: texts by name.
        seed: of the run; None when nothing was said.
        launch_type: how its nodes are run.
        directory: where the command was given; relative paths in settings begin there.
    """

    agent: str
    settings: Mapping[str, str]
    seed: int | None
    launch_type: str
    directory: str

    @classmethod
    def read(cls, run: RunDirectory) -> RunSettings | None:
        """Those of a run; None for one that the command did not launch.

        Raises:
            LaunchError: they are there, and cannot be read.
        """
        path = run.path / _FILE
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return _checked(found)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise LaunchError(
                f"What the run was launched with cannot be read from {path}: {error}. Restore the file; or delete it, "
                "and give all settings again"
            ) from None

    def write(self, run: RunDirectory) -> None:
        """Keeps them there, for this user's eyes: the URL of a server may hold a password. Raises `OSError`."""
        run.write_json(_FILE, asdict(self), mode=0o600)

    def changed(self, given: RunSettings, *, launch_type: str | None) -> RunSettings:
        """These, with what is given now in their place; `launch_type` is that which was asked for."""
        settings = dict(self.settings)
        if given.seed is not None:
            settings.pop("seed", None)  # the newer word on the same thing
        return replace(
            given,
            settings={**settings, **given.settings},
            seed=self.seed if given.seed is None else given.seed,
            launch_type=launch_type or self.launch_type,
        )

    def describe(self) -> str:
        """In one line, without passwords."""
        return ", ".join(f"{name}={text}" for name, text in self._texts().items())

    def differences(self, earlier: RunSettings) -> str:
        """What is not as it was, in one line; "" when all is."""
        now, before = self._texts(), earlier._texts()
        changed = [name for name in {**before, **now} if now.get(name) != before.get(name)]
        return ", ".join(
            f"{name}={now.get(name, 'its default')} (was {before.get(name, 'its default')})" for name in changed
        )

    def _texts(self) -> dict[str, str]:
        texts = {name: hide_password(text) for name, text in self.settings.items()}
        return {**({} if self.seed is None else {"seed": str(self.seed)}), **texts, "launch_type": self.launch_type}


def hide_password(text: str) -> str:
    """`text` without the password of a URL."""
    scheme, found, rest = text.partition("://")
    user, at, host = rest.rpartition("@")
    if not (found and at):
        return text
    return f"{scheme}://{user.partition(':')[0]}:***@{host}" if ":" in user else text


def _checked(found: Any) -> RunSettings:
    settings, seed = found["settings"], found["seed"]
    if not all(isinstance(text, str) for pair in settings.items() for text in pair):
        raise TypeError(f"its settings are {settings!r}")
    if not (seed is None or type(seed) is int):
        raise TypeError(f"its seed is {seed!r}")
    return RunSettings(
        agent=str(found["agent"]),
        settings=settings,
        seed=seed,
        launch_type=str(found["launch_type"]),
        directory=str(Path(found["directory"])),
    )
