"""The events that begin work in a project, and their senders, as `[[start]]` and `[gateway.webhooks]` describe them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from perdure.decisions.policy.rules import ExpressionError
from perdure.features.starts.rules import StartRule, compile_start
from perdure.features.starts.settings import START
from perdure.features.starts.signatures import Webhook, read_webhooks
from perdure.settings import ProjectError, Settings


@dataclass(frozen=True)
class InboundWork:
    """The webhooks of a gateway by name, and the starts that their events begin."""

    webhooks: Mapping[str, Webhook] = field(default_factory=dict)
    starts: tuple[StartRule, ...] = ()


def read_inbound_work(settings: Settings, environment: Mapping[str, str]) -> InboundWork:
    """Return the webhooks and starts of a project. Raises ProjectError."""
    return InboundWork(read_webhooks(settings.file.gateway.webhooks, environment), compile_starts(settings))


def compile_starts(settings: Settings, _client: object = None) -> tuple[StartRule, ...]:
    """Compile the events that begin work. Raises ProjectError."""
    rules = []
    for row in START.of(settings.file):
        try:
            rules.append(compile_start(row.model_dump()))
        except ExpressionError as error:
            raise ProjectError(f"{settings.at('start')}: {row.name}: {error}") from None
        settings.check_reference(row.agent, f"{settings.at('start')}: {row.name}")
    return tuple(rules)
