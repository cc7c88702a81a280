"""`max_running` of `[tools.X]`."""

import httpx

from perdure.settings import Settings


def limits_of_tools(settings: Settings, http: httpx.AsyncClient) -> dict[str, int]:  # noqa: ARG001 - of the row
    """Return the most calls at once, by tool."""
    limits = ((name, getattr(tool, "max_running", None)) for name, tool in settings.file.tools.items())
    return {name: limit for name, limit in limits if limit is not None}
