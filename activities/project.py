"""What a worker offers: the agents, tools and model settings of its project."""

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
    """`agents` always holds `default`. `workspaces` is the folder that holds a folder for each run.

    `fallbacks` are asked where `model` cannot answer; `providers` are those that names of models may begin with.

    `remote` holds the runs' stores where they don't lie in the workspaces. `window` (tokens) and `summary_model` are
    None where the project does not set them.
    """

    agents: Mapping[str, Agent]
    tools: Mapping[str, Tool]
    model: str
    max_tokens: int
    limits: LimitOverrides
    workspaces: Path
    instructions: str  # how the loop works, told to every agent
    prices: Mapping[str, Price] = field(default_factory=dict)  # as the project has them
    claude_priced: Collection[str] = ()  # the providers at which Anthropic's price list holds
    remote: Stores | None = None
    window: int | None = None
    summary_model: str | None = None
    on_journal: str = ""  # told to every agent that has a journal, where `instructions` have their mark
    builtins: tuple[ToolRoute, ...] = ROUTES  # with the approvals that the project sets
    on_delegation: str = ""  # when to delegate and how, told to every agent that has peers
    fallbacks: tuple[str, ...] = ()
    providers: Collection[str] = ()
    ceiling: LimitOverrides = field(default_factory=LimitOverrides)  # no run exceeds it

    @property
    def stores(self) -> Stores:
        return self.remote or LocalStores(self.workspaces)

    secrets: Secrets = NO_SECRETS
    outbox: Outbox | None = None  # by which messages go out
    answer_keys: Mapping[str, str] = field(default_factory=dict)  # public keys by id, of those who may answer

    def window_of(self, *models: str) -> int:
        """The smallest context window, in tokens: as the project sets it, else as the models are known to have it."""
        return self.window or min(window_of(provider_of(model, self.providers)[1]) for model in models)

    def price_of(self, model: str) -> Price | None:
        """The project's price for the model, or Anthropic's where the provider charges it. None: not known."""
        provider, bare = provider_of(model, self.providers)
        known = PRICES.get(bare) if provider in self.claude_priced else None
        return self.prices.get(model) or self.prices.get(bare) or known

    def summary_model_of(self, model: str) -> str:
        """Who writes the summaries of a run of `model`; of another provider's model that is the same."""
        provider, bare = provider_of(model, self.providers)
        return self.summary_model or (summary_model_of(bare) if provider == DEFAULT else model)

    def workspace(self, run_id: str) -> Workspace:
        return Workspace(self.workspaces / folder_name(run_id), self.secrets)
