"""A rubric: conditions in words, for a model that judges by them."""

from pydantic import Field, field_validator

from contracts.models import StrictModel


class Rubric(StrictModel):
    """The conditions, in words for a model that judges by them; by default the agent's own model."""

    rubric: str = Field(max_length=20_000)
    """The conditions, in words."""
    model: str | None = Field(default=None, min_length=1)
    """The model that judges; by default the agent's own."""

    @field_validator("rubric")
    @classmethod
    def _check_words(cls, rubric: str) -> str:
        if not rubric.strip():
            raise ValueError("it is empty: write the conditions in words")
        return rubric
