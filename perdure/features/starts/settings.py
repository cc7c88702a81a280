"""`[[start]]`: the events from outside that begin a run, or a turn of a conversation."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from perdure.contracts.models import StrictModel
from perdure.features.starts.rules import placeholders
from perdure.settings.file import ProjectFile
from perdure.settings.tables import Table

Text = Annotated[str, Field(min_length=1, max_length=1000)]
FieldName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]


class StartSettings(StrictModel):
    """A kind of event, and the work that it begins."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    """The name, which is in the ids of what it begins."""
    webhook: str
    """The name of the `[gateway.webhooks.NAME]` that the events come through."""
    on: tuple[Text, ...] = Field(min_length=1)
    """The [kinds of events](../starts.md#events), such as `app_mention` or `issues.opened`."""
    when: Text | None = None
    """A CEL expression over `event` (the body), `kind` and `user`. By default every event of these kinds counts."""
    agent: str | None = None
    """The agent; by default `default`."""
    goal: str = Field(min_length=1, max_length=20_000)
    """The goal. Each `{name}` is replaced by the field, quoted as data."""
    fields: dict[FieldName, Text] = Field(default_factory=dict, max_length=50)
    """CEL expressions by name. Their values are texts, numbers or booleans."""
    conversation: Text | None = None
    """The id of the conversation in which the event is a turn, with `{name}` for fields. By default it begins a run."""
    dedupe: Text | None = None
    """A CEL expression that identifies the event: another one with the same value begins nothing. By default it is the
    sender's id of the event, or the hash of its body."""
    answer: bool = False
    """`true` sends the outcome through the [outbox](#outbox) to the channel of the event."""

    @model_validator(mode="after")
    def _check_placeholders(self) -> Self:
        for template in (self.goal, self.conversation or ""):
            if unknown := sorted(placeholders(template) - set(self.fields)):
                raise ValueError(f"{{{unknown[0]}}} is not in fields")
        return self


def check_unique_starts(starts: tuple[StartSettings, ...]) -> tuple[StartSettings, ...]:
    """Return the starts. Raises ValueError if two have one name."""
    names = [start.name for start in starts]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two starts are named {name}")
    return starts


def _check_webhooks(starts: tuple[StartSettings, ...], file: ProjectFile) -> None:
    """Raise ValueError if a start names a webhook that the file does not have."""
    for start in starts:
        if start.webhook not in file.gateway.webhooks:
            raise ValueError(f"start.{start.name}.webhook: there is no [gateway.webhooks.{start.webhook}]")


START: Table[tuple[StartSettings, ...]] = Table(
    "start",
    Annotated[tuple[StartSettings, ...], AfterValidator(check_unique_starts)],
    (),
    check=_check_webhooks,
)
