"""All pages that are written from the code, by where they lie."""

from collections.abc import Callable, Mapping
from pathlib import Path

import cli
from tests.reference.commands import commands
from tests.reference.configuration import filled
from tests.reference.events import events
from tests.reference.failures import failures
from tests.reference.http import http
from tests.reference.workflow import workflows

DOCS = Path(cli.__file__).parent / "docs"


def _configuration() -> str:
    return filled((DOCS / "configuration.md").read_text(encoding="utf-8"))


PAGES: Mapping[Path, Callable[[], str]] = {
    DOCS / "reference" / "commands.md": commands,
    DOCS / "reference" / "events.md": events,
    DOCS / "reference" / "workflow.md": workflows,
    DOCS / "reference" / "failures.md": failures,
    DOCS / "reference" / "http.md": http,
    DOCS / "configuration.md": _configuration,
}
