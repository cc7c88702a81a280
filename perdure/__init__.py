"""Perdure, under one import name. `workflows` and `activities` are links to the folders at the root.

cli            the command group of `perdure`
answer_keys    keys that sign and verify answers
codec          encryption of Temporal payloads
converter      conversion of values to Temporal payloads and back
doctor         the checks of `perdure doctor`
devserver      the embedded Temporal server and its locks
plugin         `PerdurePlugin`: Perdure in the client, worker and replayer of another program
extras         what an installation may lack, and the command that adds it
registry       the features, a row each
python_client  `Perdure`: runs from the outside; the one API that all doors translate to
session        a command's connection: the configured Temporal, or an embedded server with a worker
stubs          typed shells of the workflows, for other Python programs
telemetry      logs and spans of a process
activities/    what does I/O, beside the runs
client/        runs from the outside, through a Temporal client
commands/      the commands of `perdure`
contracts/     values that cross a boundary
decisions/     pure functions
features/      what a run can do without
gateway/       runs over HTTP
process/       parts of a process: worker, bridge, embedded server
settings/      a project's settings
terminal/      the terminal: output and questions of commands
testkit/       fakes for tests of agents, with the real protocols
workflows/     the workflows
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.client.errors import RunCancelledError, RunEscalatedError, RunFailedError, RunNotCompletedError
    from perdure.contracts.models import NO_RESULT
    from perdure.decisions.errors import ReportedError
    from perdure.plugin import PerdurePlugin
    from perdure.python_client import Perdure, Run

__all__ = [
    "NO_RESULT",
    "Perdure",
    "PerdurePlugin",
    "ReportedError",
    "Run",
    "RunCancelledError",
    "RunEscalatedError",
    "RunFailedError",
    "RunNotCompletedError",
]

_MODULES = {
    "NO_RESULT": "perdure.contracts.models",
    "PerdurePlugin": "perdure.plugin",
    "ReportedError": "perdure.decisions.errors",
}


def __getattr__(name: str) -> Any:
    """Import on first use: commands start without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with import_module("perdure.extras").naming_extras():
        globals()[name] = getattr(import_module(_MODULES.get(name, "perdure.python_client")), name)
    return globals()[name]
