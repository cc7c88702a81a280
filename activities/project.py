"""A worker's project: its agents, tools and model settings."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from activities.followup.outbox import Outbox
from activities.model.claude import PRICES, summary_model_of, window_of
from activities.model.price import Price
from activities.security.secrets import NO_SECRETS, Secrets
from activities.storage.store import LocalStores, Stores
from activities.storage.workspace import Workspace, folder_name
from activities.tools.interface import Tool
from contracts.agent import Agent
from contracts.run.limits import LimitOverrides
from contracts.tool import ToolRoute
from decisions.builtin_tools import ROUTES
from decisions.model_names import DEFAULT, provider_of


@dataclass(frozen=True)
class Project:
    """A project. `agents` always holds `default`. `workspaces` is the folder that holds a folder for each run.

    `fallbacks` are called if `model` cannot answer; `providers` are the possible prefixes of model names. `remote`
    holds the runs' stores if they are not in the workspaces. `window` (tokens) and `summary_model` are None if the
    project does not set them.
    """

    agents: Mapping[str, Agent]
    tools: Mapping[str, Tool]
    model: str
    max_tokens: int
    limits: LimitOverrides
    workspaces: Path
    instructions: str  # for every agent: how the loop works
    prices: Mapping[str, Price] = field(default_factory=dict)  # as set by the project
    claude_priced: Collection[str] = ()  # the providers that charge Anthropic's prices
    remote: Stores | None = None
    window: int | None = None
    summary_model: str | None = None
    on_journal: str = ""  # for every agent that has a journal, at the mark in `instructions`
    builtins: tuple[ToolRoute, ...] = ROUTES  # with the project's approvals
    on_delegation: str = ""  # for every agent that has peers: when and how to delegate
    fallbacks: tuple[str, ...] = ()
    providers: Collection[str] = ()
    ceiling: LimitOverrides = field(default_factory=LimitOverrides)  # no run exceeds it
    secrets: Secrets = NO_SECRETS
    outbox: Outbox | None = None  # sends messages to the outside
    answer_keys: Mapping[str, str] = field(default_factory=dict)  # public keys of people who may answer, by id

    @property
    def stores(self) -> Stores:
        return self.remote or LocalStores(self.workspaces)

    def window_of(self, *models: str) -> int:
        """Return the context window in tokens: the project's setting, or the smallest of the models' windows."""
        return self.window or min(window_of(provider_of(model, self.providers)[1]) for model in models)

    def price_of(self, model: str) -> Price | None:
        """Return the project's price for the model, or Anthropic's if the provider charges it."""
        provider, bare = provider_of(model, self.providers)
        known = PRICES.get(bare) if provider in self.claude_priced else None
        return self.prices.get(model) or self.prices.get(bare) or known

    def summary_model_of(self, model: str) -> str:
        """Return the model that summarizes runs of `model`: for another provider's model, the same one."""
        provider, bare = provider_of(model, self.providers)
        return self.summary_model or (summary_model_of(bare) if provider == DEFAULT else model)

    def workspace(self, run_id: str) -> Workspace:
        return Workspace(self.workspaces / folder_name(run_id), self.secrets)
