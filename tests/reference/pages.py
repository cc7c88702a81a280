"""All pages that are written from the code, by where they lie."""

from collections.abc import Callable, Mapping
from pathlib import Path

from perdure import cli
from tests.reference.commands import commands
from tests.reference.configuration import fill_tables
from tests.reference.events import events
from tests.reference.failures import failures
from tests.reference.http import http
from tests.reference.llms import llms
from tests.reference.workflow import workflows

REFERENCE = Path(cli.__file__).parents[1] / "docs" / "reference"


def _configuration() -> str:
    return fill_tables((REFERENCE / "configuration.md").read_text(encoding="utf-8"))


PAGES: Mapping[Path, Callable[[], str]] = {
    REFERENCE / "commands.md": commands,
    REFERENCE / "events.md": events,
    REFERENCE / "workflow.md": workflows,
    REFERENCE / "failures.md": failures,
    REFERENCE / "http.md": http,
    REFERENCE / "configuration.md": _configuration,
    REFERENCE.parent / "llms.txt": llms,
}
