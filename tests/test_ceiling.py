"""`[limits.ceiling]` in `perdure.toml`: a project that sets limits above its own ceiling does not load."""

import re
from datetime import timedelta
from pathlib import Path

import pytest

from perdure.process.project import display_project
from settings import ProjectError, load_settings

CEILING = '[limits.ceiling]\nmax_steps = 50\nhard_limit = "30m"\nbudget_usd = 2\n'


def write(folder: Path, limits: str, agent: str = "") -> None:
    (folder / "perdure.toml").write_text(f"[limits]\n{limits}\n{CEILING}", encoding="utf-8")
    if agent:
        (folder / "agents").mkdir()
        (folder / "agents/clerk.md").write_text(f"---\nlimits: {agent}\n---\nYou file.\n", encoding="utf-8")


async def test_a_worker_has_the_ceiling_beside_the_limits(tmp_path: Path) -> None:
    write(tmp_path, "max_steps = 50\nmax_turns = 7", "{max_steps: 10, budget_usd: 2, directive_tool: reframe}")
    async with display_project(load_settings({}, tmp_path)) as project:
        assert (project.limits.max_steps, project.limits.max_turns) == (50, 7)
        assert (project.ceiling.max_steps, project.ceiling.hard_limit) == (50, timedelta(minutes=30))
        assert project.ceiling.max_turns is None


@pytest.mark.parametrize(
    ("limits", "agent", "reason"),
    [
        ("max_steps = 60", "", "perdure.toml, line 1: limits: max_steps 60 is above the project's ceiling of 50"),
        ('hard_limit = "1h"', "", "limits: hard_limit 1:00:00 is above the project's ceiling of 0:30:00"),
        ("budget_usd = 2.5", "", "limits: budget_usd 2.5 is above the project's ceiling of 2.0"),
        (
            "",
            "{max_steps: 51}",
            "line 2: limits.max_steps: max_steps 51 is above the project's ceiling of 50",
        ),
        ("", "{hard_limit: 31m}", "clerk.md, line 2: limits.hard_limit: hard_limit 0:31:00 is above"),
    ],
)
def test_a_project_above_its_own_ceiling_does_not_load(tmp_path: Path, limits: str, agent: str, reason: str) -> None:
    write(tmp_path, limits, agent)
    with pytest.raises(ProjectError, match=re.escape(reason)):
        load_settings({}, tmp_path)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ('directive_tool = "reframe"', "limits.ceiling: directive_tool"),
        ("max_stepz = 3", "limits.ceiling.max_stepz"),
        ("max_steps = 0", "limits.ceiling.max_steps"),
        ("[limits.ceiling.ceiling]", "limits.ceiling.ceiling"),
    ],
)
def test_a_ceiling_that_makes_no_sense_is_refused_by_name(tmp_path: Path, setting: str, reason: str) -> None:
    (tmp_path / "perdure.toml").write_text(f"[limits.ceiling]\n{setting}\n", encoding="utf-8")
    with pytest.raises(ProjectError, match=re.escape(reason)):
        load_settings({}, tmp_path)
