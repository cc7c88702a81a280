"""The connection to Temporal: its address and safety rules, its API key, and the search attributes the server needs."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import DataConverter, DefaultPayloadConverter, StorageDriver, WithSerializationContext
from temporalio.envconfig import ClientConfig, ClientConnectConfig
from temporalio.service import RPCError, RPCStatusCode

from activities.telemetry import attributes
from contracts.models import is_utf8
from decisions.text.formatting import truncate
from perdure.client.errors import TemporalUnavailableError
from perdure.codec import AesGcmCodec
from perdure.converter import TolerantPayloadConverter, converter_for
from settings.access import is_loopback
from settings.problems import ProjectError

KEY_INTERVAL = timedelta(minutes=1)  # between reads of the configuration file, for a new API key
NOT_LISTED = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.NOT_FOUND)

_log = logging.getLogger(__name__)


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
    address: str | None = None,
    codec: AesGcmCodec | None = None,
    payloads: StorageDriver | None = None,
    options: ClientConnectConfig | None = None,
) -> Client:
    """Connect to the configured Temporal, or with `options` to that at `address`, to which TEMPORAL_* does not apply.

    `codec` encrypts payloads, and `payloads` stores large ones. Raises TemporalUnavailableError.
    """
    configured = _read_config()
    config: ClientConnectConfig = {**(options or {}), "target_host": address} if address else configured
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


def adopt_converter(
    existing: DataConverter, codec: AesGcmCodec | None, payloads: StorageDriver | None
) -> DataConverter:
    """Return Perdure's converter, with the own codec and storage of another one if it has them. Raises ProjectError."""
    ours = converter_for(codec, payloads)
    kind, other, storage = existing.payload_converter_class, existing.payload_codec, existing.external_storage
    if kind not in (DefaultPayloadConverter, PydanticPayloadConverter, TolerantPayloadConverter):
        raise ProjectError(f"this client's payload converter is {kind.__name__}, and Perdure needs its own")
    if isinstance(other, WithSerializationContext):
        raise ProjectError("this client's codec depends on the context of a payload, which Perdure does not keep")
    if other and ours.payload_codec not in (None, other):
        raise ProjectError("this client has a codec of its own, and PERDURE_CODEC_KEYS is set: use one of them")
    if storage and ours.external_storage not in (None, storage):
        raise ProjectError("this client has external storage of its own, and PERDURE_PAYLOADS is set: use one of them")
    if ours.payload_codec is None:
        ours = replace(ours, payload_codec=other, failure_converter_class=existing.failure_converter_class)
    return replace(ours, external_storage=storage) if storage else ours


def _load_config(environment: Mapping[str, str] | None = None) -> ClientConnectConfig:
    """Load Temporal's configuration from its file and these variables, by default the process's."""
    return ClientConfig.load_client_connect_config(override_env_vars=environment or _readable_environment())


def _readable_environment() -> dict[str, str]:
    """Return the variables that are not empty and UTF-8: the SDK's core panics on others."""
    return {name: value for name, value in os.environ.items() if value and is_utf8(name) and is_utf8(value)}


@asynccontextmanager
async def refresh_api_key(client: Client, interval: timedelta = KEY_INTERVAL) -> AsyncIterator[None]:
    """Give the client each new API key of Temporal's configuration file while the block runs: keys expire.

    The variables are those of now. One that holds a key takes precedence over the file, and stays the same.
    """
    task = asyncio.create_task(_refresh_api_key(client, _readable_environment(), interval))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _refresh_api_key(client: Client, environment: Mapping[str, str], interval: timedelta) -> None:
    while client.api_key:
        await asyncio.sleep(interval.total_seconds())
        try:
            key = (await asyncio.to_thread(_load_config, environment)).get("api_key")
        except (RuntimeError, OSError, ValueError) as error:
            _log.warning("the API key cannot be read again: %s", truncate(str(error), 300))
            continue
        if key and key != client.api_key:
            client.api_key = key
            _log.info("Temporal's configuration has a new API key; it is in use")


async def register_search_attributes(client: Client) -> str | None:
    """Add missing search attributes: an upsert of an unknown one would leave the run stuck.

    Return a warning if the server does not list them to this client, as Temporal Cloud may not.
    Raises TemporalUnavailableError if one has another type, or if this client may not add them.
    """
    expected = {
        key.name: IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{key.indexed_value_type.name}") for key in attributes.KEYS
    }
    try:
        known = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace), retry=True
        )
    except RPCError as error:
        if error.status not in NOT_LISTED:
            raise
        return await _probe_search_attributes(client, error)
    wrong = [name for name, kind in expected.items() if known.custom_attributes.get(name, kind) != kind]
    if wrong:
        raise TemporalUnavailableError(
            f"search attribute {wrong[0]} exists with another type in namespace {client.namespace}"
        )
    missing = {name: kind for name, kind in expected.items() if name not in known.custom_attributes}
    if not missing:
        return None
    try:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=missing), retry=True
        )
    except RPCError as error:
        raise _missing_error(client, f"{', '.join(missing)}; this client cannot add them ({error.message})") from None
    return None


async def _probe_search_attributes(client: Client, error: RPCError) -> str:
    """Return a warning: only a query can show whether the attributes exist. Raises TemporalUnavailableError."""
    warning = f"the search attributes of namespace {client.namespace} are not listed ({error.message})"
    try:
        await client.count_workflows(" AND ".join(f"{key.name} IS NULL" for key in attributes.KEYS))
    except RPCError as denied:
        if denied.status is RPCStatusCode.INVALID_ARGUMENT:
            raise _missing_error(client, denied.message) from None
        return f"{warning} nor queried ({denied.message}): if one is missing, runs hang; needed are {_format_types()}"
    return f"{warning}: they exist, but their types are not checked; needed are {_format_types()}"


def _missing_error(client: Client, reason: str) -> TemporalUnavailableError:
    return TemporalUnavailableError(
        f"search attributes are missing in namespace {client.namespace}: {reason}; add them, or set [worker] "
        f"search_attributes = false; needed are {_format_types()}"
    )


def _format_types() -> str:
    return ", ".join(f"{key.name} ({key.indexed_value_type.name})" for key in attributes.KEYS)


async def has_worker_commands(client: Client) -> bool:
    """Return whether the server sends a worker the cancels of its activities, which otherwise answer heartbeats."""
    try:
        request = DescribeNamespaceRequest(namespace=client.namespace)
        namespace = await client.workflow_service.describe_namespace(request, retry=True)
    except (RPCError, RuntimeError):  # not permitted, or a lazy client that cannot connect
        return False
    return namespace.namespace_info.capabilities.worker_commands
