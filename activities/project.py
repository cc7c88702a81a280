"""The agents, tools and model settings that a worker offers."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perdure.activities.providers.prices import CLAUDE_PRICES, Price, claude_summary_model, claude_window
from perdure.activities.security import NO_SECRETS, Secrets
from perdure.activities.storage.store import LocalStores, Stores
from perdure.activities.storage.workspace import Workspace, folder_name
from perdure.activities.tools.interface import Tool
from perdure.contracts.agent import Agent
from perdure.contracts.model_settings import BatchSettings, ModelOptions, Pace
from perdure.contracts.run.limits import LimitOverrides
from perdure.contracts.tool import ToolRoute
from perdure.decisions.model_names import DEFAULT, provider_of
from perdure.decisions.policy.rules import Policy
from perdure.decisions.tools import routes


@dataclass(frozen=True)
class Project:
    """The project of a worker. `faulty` are agents whose files do not load, with the reason.

    `workspaces` is the parent of the runs' folders.

    `fallbacks` are called if `model` fails; `providers` are the prefixes that model names may have.

    `remote` holds the runs' stores, unless they are in the workspaces. `window` (tokens) and `summary_model` are None
    if the project does not set them.
    """

    agents: Mapping[str, Agent]
    tools: Mapping[str, Tool]
    model: str
    limits: LimitOverrides
    workspaces: Path
    instructions: str  # for every agent: how the loop works
    prices: Mapping[str, Price] = field(default_factory=dict)  # set by the project
    claude_priced: Collection[str] = ()  # the providers that charge Anthropic's prices
    remote: Stores | None = None
    window: int | None = None
    summary_model: str | None = None
    builtins: tuple[ToolRoute, ...] = field(default_factory=routes)  # with the project's approvals
    on_delegation: str = ""  # for every agent with peers: when to delegate and how
    fallbacks: tuple[str, ...] = ()
    providers: Collection[str] = ()
    chat_providers: Collection[str] = ()  # those of the Chat Completions API
    options: ModelOptions = field(default_factory=ModelOptions)  # an agent's own come first
    record_thinking: bool = False  # in the trace
    pace: Pace | None = None  # for agents that do not set it
    batches: BatchSettings = field(default_factory=BatchSettings)
    fuse_reads: bool = False  # for agents that do not set it
    ceiling: LimitOverrides = field(default_factory=LimitOverrides)  # no run exceeds it

    policy: Policy | None = None
    secrets: Secrets = NO_SECRETS
    parts: Mapping[str, Any] = field(default_factory=dict)  # of features, by their names
    faulty: Mapping[str, str] = field(default_factory=dict)
    page_url: str = ""  # of the gateway's page, for links in notices
    answer_keys: Mapping[str, str] = field(default_factory=dict)  # public keys of the people who may answer, by id

    @property
    def stores(self) -> Stores:
        return self.remote or LocalStores(self.workspaces)

    def models_of(self, agent: Agent) -> tuple[str, ...]:
        """Return the agent's models, in the order in which they are asked."""
        return (agent.model, *agent.fallbacks) if agent.model else (self.model, *self.fallbacks)

    def window_of(self, *models: str) -> int:
        """Return the smallest context window in tokens, as set by the project or known for the models."""
        return self.window or min(claude_window(provider_of(model, self.providers)[1]) for model in models)

    def price_of(self, model: str) -> Price | None:
        """Return the project's price for the model, or Anthropic's if the provider charges it."""
        provider, bare = provider_of(model, self.providers)
        known = CLAUDE_PRICES.get(bare) if provider in self.claude_priced else None
        return self.prices.get(model) or self.prices.get(bare) or known

    def summary_model_of(self, model: str) -> str:
        """Return the model that summarizes runs of `model`; another provider's model summarizes its own."""
        provider, bare = provider_of(model, self.providers)
        return self.summary_model or (claude_summary_model(bare) if provider == DEFAULT else model)

    def workspace(self, run_id: str) -> Workspace:
        return Workspace(self.workspaces / folder_name(run_id), self.secrets)
