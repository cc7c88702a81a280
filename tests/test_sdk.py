"""The parts of Temporal's SDK that Perdure overrides: a new version of the SDK is tried against this list first."""

import ast
import inspect
from typing import Any

import pytest
import temporalio.service
from packaging.requirements import Requirement
from temporalio.converter import CompositePayloadConverter, DataConverter, DefaultFailureConverter
from temporalio.worker import WorkflowInstance
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from perdure.converter import EncryptedFailureConverter, TolerantDataConverter, TolerantPayloadConverter
from perdure.workflows.sandbox import Sandbox, _Instance
from tests.test_house import ROOT, project, sources

VERSION = f"temporalio {temporalio.service.__version__}"

OVERRIDES = [
    (DataConverter, TolerantDataConverter, "_decode_reference_payload_sequence", ["self", "payloads"]),
    (DataConverter, TolerantDataConverter, "_external_retrieve_payload_sequence", ["self", "payloads"]),
    (CompositePayloadConverter, TolerantPayloadConverter, "to_payloads", ["self", "values"]),
    (CompositePayloadConverter, TolerantPayloadConverter, "from_payloads", ["self", "payloads", "type_hints"]),
    (
        DefaultFailureConverter,
        EncryptedFailureConverter,
        "to_failure",
        ["self", "exception", "payload_converter", "failure"],
    ),
    (SandboxedWorkflowRunner, Sandbox, "create_instance", ["self", "det"]),
    (WorkflowInstance, _Instance, "activate", ["self", "act"]),
    (WorkflowInstance, _Instance, "get_serialization_context", ["self", "command_info"]),
    (WorkflowInstance, _Instance, "get_external_store_context", ["self", "command_info"]),
    (WorkflowInstance, _Instance, "get_info", ["self"]),
    (WorkflowInstance, _Instance, "get_thread_id", ["self"]),
]


@pytest.mark.parametrize(("base", "ours", "name", "parameters"), OVERRIDES, ids=str)
def test_what_we_override_is_still_there(base: Any, ours: Any, name: str, parameters: list[str]) -> None:
    where = f"{ours.__module__}.{ours.__name__}"
    assert hasattr(base, name), f"{VERSION} has no {base.__name__}.{name} any more, which {where} overrides"
    found = list(inspect.signature(getattr(base, name)).parameters)
    assert found == parameters, f"{VERSION}: {base.__name__}.{name} takes {found}; adapt {where}"


def test_the_list_has_every_override() -> None:
    listed = {(ours, name) for _, ours, name, _ in OVERRIDES}
    pairs = {(base, ours) for base, ours, *_ in OVERRIDES}
    names = {(ours, name) for base, ours in pairs for name in vars(ours).keys() & vars(base).keys()}
    assert {(ours, name) for ours, name in names if not name.startswith(("__", "_abc_"))} == listed


def test_a_workflow_instance_has_no_method_that_ours_lacks() -> None:
    abstract: frozenset[str] = WorkflowInstance.__abstractmethods__
    new = abstract - vars(_Instance).keys()
    assert not new, f"{VERSION}: WorkflowInstance has new abstract methods; add to workflows.sandbox._Instance: {new}"


def test_the_sdk_has_an_upper_bound() -> None:
    (sdk,) = [r for r in map(Requirement, project()["project"]["dependencies"]) if r.name == "temporalio"]
    assert not sdk.specifier.contains("1.36.0"), "raise it once this file passes with the new version"


def test_calls_of_the_servers_own_interface_are_retried_as_those_of_the_client_are() -> None:
    """By default they are not, and every connection is closed by the server after some minutes."""
    found = []
    ours = (path for path in ROOT.glob("tests/**/*.py") if "node_modules" not in path.parts)
    for path in [*sources().values(), *ours]:
        for call in [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]:
            service, _, _ = ast.unparse(call.func).rpartition(".")
            if service.endswith((".workflow_service", ".operator_service")):
                found += [f"{path}:{call.lineno}"] if "retry" not in {each.arg for each in call.keywords} else []
    assert found == []
