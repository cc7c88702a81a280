"""What a worker offers: the agents, tools and model settings of its project."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from activities.secrets import NO_SECRETS, Secrets
from activities.store import LocalStores, Stores
from activities.toolkit import Tool
from activities.workspace import Workspace, folder_name
from contracts.agent import Agent
from contracts.limits import LimitOverrides


@dataclass(frozen=True)
class Price:
    """USD per million tokens."""

    input: float
    output: float
    cache_read: float
    cache_write: float


@dataclass(frozen=True)
class Project:
    """`agents` always holds `default`. `workspaces` is the folder that holds a folder for each run.

    `remote` holds the runs' stores where they don't lie in the workspaces.
    """

    agents: Mapping[str, Agent]
    tools: Mapping[str, Tool]
    model: str
    max_tokens: int
    limits: LimitOverrides
    workspaces: Path
    instructions: str  # how the loop works, told to every agent
    prices: Mapping[str, Price] = field(default_factory=dict)
    remote: Stores | None = None

    @property
    def stores(self) -> Stores:
        return self.remote or LocalStores(self.workspaces)

    secrets: Secrets = NO_SECRETS

    def workspace(self, run_id: str) -> Workspace:
        return Workspace(self.workspaces / folder_name(run_id), self.secrets)
