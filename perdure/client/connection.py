"""The connection to Temporal: its address and safety rules, and the search attributes the server needs."""

import os

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.converter import StorageDriver
from temporalio.envconfig import ClientConfig, ClientConnectConfig
from temporalio.service import RPCError

from activities.telemetry import attributes
from contracts.models import is_utf8
from decisions.text.formatting import truncate
from perdure.client.errors import TemporalUnavailableError
from perdure.codec import AesGcmCodec
from perdure.converter import converter_for
from settings.access import is_loopback


def configured_address() -> str | None:
    """Return the Temporal address from TEMPORAL_* or a profile, if configured. Raises TemporalUnavailableError."""
    return _read_config().get("target_host")


def configured_namespace() -> str | None:
    """Return the namespace from TEMPORAL_* or a profile, if configured. Raises TemporalUnavailableError."""
    return _read_config().get("namespace")


def _read_config() -> ClientConnectConfig:
    try:
        return _load_config()
    except (RuntimeError, OSError, ValueError) as error:
        raise TemporalUnavailableError(f"Temporal's configuration does not load: {truncate(str(error), 300)}") from None


async def connect(
    address: str | None = None, codec: AesGcmCodec | None = None, payloads: StorageDriver | None = None
) -> Client:
    """Connect to the configured Temporal, or to the embedded one at `address`, to which TEMPORAL_* does not apply.

    `codec` encrypts payloads, and `payloads` stores large ones. Raises TemporalUnavailableError.
    """
    configured = _read_config()
    config = ClientConnectConfig(target_host=address) if address else configured
    target = config.setdefault("target_host", "localhost:7233")
    if not is_loopback(target.rsplit(":", 1)[0].strip("[]")) and not config.get("tls") and not config.get("api_key"):
        raise TemporalUnavailableError(
            f"{target} is not on this machine: set TEMPORAL_TLS or TEMPORAL_API_KEY to connect to it"
        )
    try:
        return await Client.connect(**config, data_converter=converter_for(codec, payloads))
    except (RuntimeError, OSError, ValueError, RPCError) as error:
        reason = "connection refused" if "ConnectionRefused" in str(error) else truncate(str(error), 200)
        raise TemporalUnavailableError(f"no Temporal server answers at {target}: {reason}") from None


def _load_config() -> ClientConnectConfig:
    """Load Temporal's configuration, without variables that are empty or not UTF-8: the SDK's core panics on those."""
    readable = {name: value for name, value in os.environ.items() if value and is_utf8(name) and is_utf8(value)}
    return ClientConfig.load_client_connect_config(override_env_vars=readable)


async def register_search_attributes(client: Client) -> None:
    """Add missing search attributes: an upsert of an unknown one would leave the run stuck.

    Raises TemporalUnavailableError if one has another type, or if this client may not add them.
    """
    expected = {
        key.name: IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{key.indexed_value_type.name}") for key in attributes.KEYS
    }
    known = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    wrong = [name for name, kind in expected.items() if known.custom_attributes.get(name, kind) != kind]
    if wrong:
        raise TemporalUnavailableError(
            f"search attribute {wrong[0]} exists with another type in namespace {client.namespace}"
        )
    missing = {name: kind for name, kind in expected.items() if name not in known.custom_attributes}
    if not missing:
        return
    try:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=missing)
        )
    except RPCError as error:
        names = ", ".join(missing)
        message = f"search attributes are missing in namespace {client.namespace} and cannot be added ({error.message})"
        raise TemporalUnavailableError(f"{message}; add them: {names}") from None


async def has_worker_commands(client: Client) -> bool:
    """Return whether the server sends a worker the cancels of its activities, which otherwise answer heartbeats."""
    try:
        request = DescribeNamespaceRequest(namespace=client.namespace)
        namespace = await client.workflow_service.describe_namespace(request)
    except (RPCError, RuntimeError):  # not permitted, or a lazy client that cannot connect
        return False
    return namespace.namespace_info.capabilities.worker_commands
