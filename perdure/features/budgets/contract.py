"""The messages between workers and the workflow `Budgets`, and the state of that workflow.

An amount is whole: micro-USD, tokens, runs, steps or requests. All amounts of a worker are sums since the window
began, never differences: the same turn twice, and a turn whose answer was lost, change nothing.
"""

from enum import StrEnum

from pydantic import Field

from perdure.contracts.models import FrozenModel, StrictModel, omit_default
from perdure.contracts.people import Sender

USD = 1_000_000  # micro-USD


class Measure(StrEnum):
    """The measure of an allowance. Requests are those of providers, which no budget counts."""

    usd = "usd"
    tokens = "tokens"
    runs = "runs"
    steps = "steps"
    requests = "requests"


class Per(StrEnum):
    """The holders of a budget's allowances: each of them has one."""

    project = "project"
    agent = "agent"
    owner = "owner"
    requester = "requester"
    schedule = "schedule"
    key = "key"


class Every(StrEnum):
    """A window, by the calendar in UTC. A week begins on Monday. A minute is for the limits of providers."""

    minute = "minute"
    hour = "hour"
    day = "day"
    week = "week"
    month = "month"


class WhenUsedUp(StrEnum):
    """The reaction to a call that the rest of an allowance does not cover."""

    ask = "ask"
    wait = "wait"
    stop = "stop"


class Terms(FrozenModel):
    """The terms of allowances, as a worker's `perdure.toml` has them. Without a `limit` they are only counted.

    `has_credit`: each worker may spend a part of one before it asks, as there may be thousands of them. If one `waits`,
    runs go on once its window ends; if it `asks`, too, people are asked meanwhile. Of a rate, each living worker gets
    an equal part first, and of the rest by need; it is no news that it is used up.
    """

    limit: int | None = None
    every: Every | None = omit_default(None)
    warn_at: int | None = omit_default(None)
    raise_by: tuple[str, ...] = omit_default(())
    has_credit: bool = omit_default(default=False)
    waits: bool = omit_default(default=False)
    asks: bool = omit_default(default=False)
    is_rate: bool = omit_default(default=False)


class KeyTurn(FrozenModel):
    """A worker's part in one allowance: what it has spent in the window, and what it keeps of what it was granted.

    It asks for `want` more; `most` is the bound of its next call.
    """

    window: int
    spent: int
    keep: int
    want: int = omit_default(0)
    most: int = omit_default(0)


class BudgetTurn(FrozenModel):
    """The input of the update `turn`: allowances by their keys, `name/measure/value`, and terms by `name/measure`.

    `seq` grows; a turn that arrives after a later one is ignored. With `is_last` the worker is gone.
    """

    worker: str
    seq: int
    terms: dict[str, Terms]
    keys: dict[str, KeyTurn]
    is_last: bool = omit_default(default=False)


class Window(FrozenModel):
    """A window: its start, in seconds since 1970, and how many seconds it still lasts; None: for ever.

    `credit` is the percentage of an allowance with credit that the worker may spend in it unasked.
    """

    start: int
    seconds: float | None = None
    credit: int = omit_default(0)


class Occasion(FrozenModel):
    """The time when an allowance was used up: its window, and the number of `changes` of all allowances before.

    `used` of its `limit` were counted then. It lasts until the allowance is raised or reset, or the window ends.
    """

    window: int
    used: int
    limit: int
    changes: int


class BudgetAnswer(FrozenModel):
    """The answer of `turn`: what the worker has been granted in each window, as sums.

    `used_up` are the allowances that a call was refused from. Runs that need the `stopped` ones end. `changes` counts
    raises and resets.
    """

    granted: dict[str, int]
    used_up: dict[str, Occasion] = omit_default({})
    stopped: tuple[str, ...] = omit_default(())
    windows: dict[str, Window]
    changes: int


class KeyState(FrozenModel):
    """An allowance in its current window. `announced` are the marks that people know of: `warn` and `used_up`.

    `holdings` has what each worker was granted and what it has spent of that; `lost` was granted to workers without
    a turn for a month. `used_up` is set once a call was refused, as the rest does not cover it.
    `is_stopped`: a person has answered that runs end then.
    """

    window: int = omit_default(0)
    spent: int = omit_default(0)
    raised: int = omit_default(0)
    lost: int = omit_default(0)
    announced: tuple[str, ...] = omit_default(())
    used_up: Occasion | None = omit_default(None)
    is_stopped: bool = omit_default(default=False)
    holdings: dict[str, tuple[int, int]] = omit_default({})


class WorkerState(FrozenModel):
    """A worker: its last turn and its time, in seconds since 1970."""

    seq: int
    at: float
    is_gone: bool = omit_default(default=False)


class Credit(FrozenModel):
    """The workers that may spend a percentage of each allowance with credit in this window before they ask for more.

    It counts as taken from the start of the window, so once a worker was granted more than that (`is_closed`) there is
    none for others.
    """

    window: int
    percent: int
    workers: tuple[str, ...]
    is_closed: bool = omit_default(default=False)


class BudgetsState(FrozenModel):
    """The state of `Budgets`: its input after continue-as-new, and that of its successor if it was terminated.

    `credits` are by the length of the window.
    """

    terms: dict[str, Terms] = Field(default_factory=dict)
    keys: dict[str, KeyState] = Field(default_factory=dict)
    workers: dict[str, WorkerState] = Field(default_factory=dict)
    credits: dict[str, Credit] = omit_default({})
    changes: int = 0


class BudgetChange(StrictModel):
    """The body of the updates `raise_budget` and `reset_budget`, for one allowance in its current window.

    `terms` are those of the sender's project, in case that the entity does not know the allowance yet.
    """

    key: str = Field(min_length=1, max_length=400)
    """As in the query `state`: `name/measure/value`."""
    amount: int = Field(default=0, ge=0)
    """By how much it is raised."""
    stops: bool = omit_default(default=False)
    """`true`: it is not raised or reset, and runs that it does not cover end."""
    only_after: int | None = omit_default(None)
    """The `changes` of the occasion that a question was about. If it is over, nothing is done: the answer is late."""
    terms: Terms
    sender: Sender | None = omit_default(None)
    """The entry point that it came through. Set by Perdure."""


class AllowanceView(FrozenModel):
    """An allowance, as people see it. `value` is whose it is, unless the budget is the project's.

    `leased` was granted to workers and is not spent yet; `unaccounted` to workers that were not heard of for minutes.
    """

    name: str
    measure: Measure
    value: str
    limit: int | None
    used: int
    raised: int = 0
    leased: int = 0
    unaccounted: int = 0
    resets_in: float | None = None
    is_used_up: bool = False


class BudgetNews(FrozenModel):
    """The input of the activity `describe_news`: a mark that an allowance has reached, once a window."""

    allowance: AllowanceView
    mark: str
    window: int


class Release(FrozenModel):
    """The input of the activity `release_waiting`: an allowance that runs need not wait for any more.

    `question` is the id of the question that people were asked about it.
    """

    key: str
    question: str = omit_default("")
