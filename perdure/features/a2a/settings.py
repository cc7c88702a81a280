"""`[a2a]`: the door for agents elsewhere."""

from perdure.contracts.models import StrictModel
from perdure.settings.tables import Table


class A2aSettings(StrictModel):
    """The door for [agents elsewhere](../a2a.md), with `use = ["a2a"]` in `[features]`."""

    compat_0_3: bool = False
    """`true` serves clients of A2A 0.3, too, at the same address."""


A2A = Table("a2a", A2aSettings, A2aSettings())
