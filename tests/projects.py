"""Projects in a folder, and the one line with which a wrong one is rejected."""

from pathlib import Path

import pytest

from perdure.settings import ProjectError, Settings, load_settings
from perdure.settings.problems import raise_all


def write_project(folder: Path, toml: str = "", *, head: str | None = None, name: str = "a") -> None:
    """Writes perdure.toml and, with a head, the file of an agent."""
    (folder / "perdure.toml").write_text(toml, encoding="utf-8")
    if head is not None:
        (folder / "agents").mkdir(exist_ok=True)
        (folder / "agents" / f"{name}.md").write_text(f"---\n{head}\n---\nYou are tested.\n", encoding="utf-8")


def load_project(folder: Path, toml: str = "", *, head: str | None = None, **env: str) -> Settings:
    """The settings of a project whose agent file loads. Raises ProjectError."""
    write_project(folder, toml, head=head)
    settings = load_settings(env, folder)
    raise_all([*settings.roster.faults.values()])
    return settings


def rejection_line(folder: Path, toml: str = "", *, head: str | None = None, **env: str) -> str:
    """The one line of the error with which these settings are rejected."""
    with pytest.raises(ProjectError) as error:
        load_project(folder, toml, head=head, **env)
    assert "\n" not in str(error.value)
    return str(error.value)
