"""Code shared by Perdure's processes; the programs themselves are at the root.

answer_keys    keys that sign and verify answers
codec          encryption of Temporal payloads
converter      conversion of values to Temporal payloads and back
doctor         the checks of `perdure doctor`
plugin         `PerdurePlugin`: Perdure in the client, worker and replayer of another program
python_client  `Perdure`: agent runs from a Python program
session        a command's connection: the configured Temporal, or an embedded server with a worker
stubs          typed shells of the workflows, for other Python programs
client/        runs from the outside, through a Temporal client
commands/      the commands of `perdure`
process/       parts of a process: worker, bridge, embedded server
terminal/      the terminal: output and questions of commands
testkit/       fakes for tests of agents, with the real protocols
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contracts.models import NO_RESULT
    from decisions.errors import ReportedError
    from perdure.client.errors import RunCancelledError, RunEscalatedError, RunFailedError, RunNotCompletedError
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
    "NO_RESULT": "contracts.models",
    "PerdurePlugin": "perdure.plugin",
    "ReportedError": "decisions.errors",
}
# A program's own module of such a name would hide Perdure's: the folder of a script comes first on the import path.
_PLAIN_NAMES = ("activities", "contracts", "decisions", "settings", "telemetry", "worker", "workflows")


def __getattr__(name: str) -> Any:
    """Import on first use: commands start without it. Raises ImportError if Perdure's modules are hidden."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    root = Path(__file__).parents[1]
    for module in _PLAIN_NAMES:
        spec = find_spec(module)
        if spec is None or spec.origin is None or not Path(spec.origin).is_relative_to(root):
            raise ImportError(f"{spec and spec.origin} hides Perdure's own module {module}: rename it")
    globals()[name] = getattr(import_module(_MODULES.get(name, "perdure.python_client")), name)
    return globals()[name]
