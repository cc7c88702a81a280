"""`[push]`: the states of runs, sent to addresses that callers name."""

from collections.abc import Mapping

from perdure.contracts.models import StrictModel
from perdure.features.notices.settings import Variable
from perdure.settings.environment import check_key, parse_variable
from perdure.settings.problems import ProjectError, collecting
from perdure.settings.tables import Table


class PushSettings(StrictModel):
    """Push notifications to [agents elsewhere](../a2a.md#push-notifications)."""

    secret_env: Variable | None = None
    """The variable with the secret that signs them, as in `whsec_…`. Without one there are none. Gateways and workers
    need it."""
    allow_hosts: tuple[str, ...] = ()
    """Hosts that may have private addresses, and be reached without TLS: `host` (any port) or `host:port`."""


def _read_secret(push: PushSettings, env: Mapping[str, str], faults: list[ProjectError]) -> str:
    """Return the secret; empty without one, or if its variable is not set."""
    secret: str | None = None
    with collecting(faults):
        secret = push.secret_env and parse_variable(push.secret_env, env.get(push.secret_env), check_key)
    return secret or ""


PUSH = Table("push", PushSettings, PushSettings(), read=_read_secret, secrets=lambda push: [push.secret_env])
