"""An agent's definition, and the snapshot a run keeps of it."""

from typing import Any

from contracts.limits import LimitOverrides, Limits
from contracts.tool import ToolRoute
from contracts.value import Value

DEFAULT_AGENT = "default"


class Agent(Value):
    """An agent as its project defines it. `tools` is the allow-list; built-ins are always there."""

    name: str
    description: str = ""
    model: str | None = None
    tools: tuple[str, ...]
    limits: LimitOverrides = LimitOverrides()
    prompt: str = ""


class ToolSchema(Value):
    """A tool as the model is told of it."""

    name: str
    description: str
    input_schema: dict[str, Any]


class Definition(Value):
    """The bulk of a snapshot: what goes to the model. It lies in the run's store under its hash."""

    agent: str
    model: str
    max_tokens: int
    system: str
    tools: tuple[ToolSchema, ...]


class Opening(Value):
    """What the activity `open_run` found: the tool table, limits, and the definition by reference."""

    agent: str
    model: str
    definition: str
    tools: tuple[ToolRoute, ...]
    limits: Limits  # of agent, file and defaults: decided here, so that a replay does not depend on a later default
    workspace: str


class OpeningRequest(Value):
    """The goal is read from the transcript, which a cursor names."""

    agent: str
    length: int
    head: str
