"""Functions that agents of the tests name as their `accept`."""

import asyncio
from pathlib import Path
from typing import Any

from pydantic import BaseModel, field_validator


class Total(BaseModel):
    total: int

    @field_validator("total")
    @classmethod
    def _check_total(cls, total: int) -> int:
        if total < 0:
            raise ValueError("a total is not negative")
        return total


seen: list[dict[str, Any]] = []


def has_good_outcome(goal: str, outcome: str, result: Any, artifacts: list[str]) -> bool | str:
    seen.append({"goal": goal, "outcome": outcome, "result": result, "artifacts": artifacts})
    return True if "good" in outcome else "the outcome is not good"


def has_files(artifacts: list[str]) -> bool:
    return all(Path(path).read_text(encoding="utf-8") for path in artifacts) and bool(artifacts)


def fails_an_assertion(outcome: str) -> bool:
    assert "good" in outcome, "no good in it"
    return True


def has_total(result: Total) -> bool:
    return result.total > 0


async def hangs_once() -> bool:
    """Does not end, the first time."""
    seen.append({})
    if len(seen) == 1:
        await asyncio.Event().wait()
    return True


def takes_too_much(outcome: str, colour: str) -> bool:
    return bool(outcome and colour)
