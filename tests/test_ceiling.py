"""`[limits.ceiling]` in `perdure.toml`: a project that sets limits above its own ceiling does not load."""

from datetime import timedelta
from pathlib import Path

import pytest

from perdure.process.project import display_project
from tests.projects import load_project, rejection_line

CEILING = '[limits.ceiling]\nmax_steps = 50\nhard_limit = "30m"\nbudget_usd = 2\n'


async def test_a_worker_has_the_ceiling_and_the_limits(tmp_path: Path) -> None:
    limits = f"[limits]\nmax_steps = 50\nmax_turns = 7\n{CEILING}"
    head = "limits: {max_steps: 10, budget_usd: 2, directive_tool: reframe}"
    async with display_project(load_project(tmp_path, limits, head=head)) as project:
        assert (project.limits.max_steps, project.limits.max_turns) == (50, 7)
        assert (project.ceiling.max_steps, project.ceiling.hard_limit) == (50, timedelta(minutes=30))
        assert project.ceiling.max_turns is None


@pytest.mark.parametrize(
    ("limits", "agent", "reason"),
    [
        ("max_steps = 60", None, "perdure.toml, line 1: limits: max_steps 60 is above the project's ceiling of 50"),
        ('hard_limit = "1h"', None, "limits: hard_limit 1:00:00 is above the project's ceiling of 0:30:00"),
        ("budget_usd = 2.5", None, "limits: budget_usd 2.5 is above the project's ceiling of 2.0"),
        (
            "",
            "{max_steps: 51}",
            "line 2: limits.max_steps: max_steps 51 is above the project's ceiling of 50",
        ),
        ("", "{hard_limit: 31m}", "a.md, line 2: limits.hard_limit: hard_limit 0:31:00 is above"),
    ],
)
def test_a_project_above_its_own_ceiling_does_not_load(
    tmp_path: Path, limits: str, agent: str | None, reason: str
) -> None:
    assert reason in rejection_line(tmp_path, f"[limits]\n{limits}\n{CEILING}", head=agent and f"limits: {agent}")


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
    assert reason in rejection_line(tmp_path, f"[limits.ceiling]\n{setting}\n")
