"""The strict sandbox: workflows and decisions are loaded in it for each run, so that it sees what their code calls.

A worker's sandbox lets them pass, which costs less and checks less. Contracts are values, and activities are imported
for their names.
"""

from temporalio.worker.workflow_sandbox import SandboxRestrictions

from perdure.registry import BUILT_IN
from perdure.workflows.sandbox import Sandbox

OF_FEATURES = tuple(f"perdure.features.{name}.{part}" for name in BUILT_IN for part in ("activities", "contract"))
PASSING = ("perdure.activities", "perdure.contracts", "perdure.registry", *OF_FEATURES, "pydantic_core", "cryptography")


def strict_runner() -> Sandbox:
    return Sandbox(SandboxRestrictions.default.with_passthrough_modules(*PASSING), stores=False)
