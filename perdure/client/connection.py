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
from temporalio.client import Client
from temporalio.converter import DataConverter, StorageDriver, WithSerializationContext
from temporalio.envconfig import ClientConfig, ClientConnectConfig
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.telemetry import attributes
from perdure.client.errors import TemporalUnavailableError
from perdure.client.guard import guard_of, with_guard
from perdure.codec import AesGcmCodec
from perdure.contracts.models import is_utf8
from perdure.converter import converter_for, extend_payload_converter
from perdure.decisions.text.formatting import truncate
from perdure.settings.environment import MAX_PORT, is_loopback
from perdure.settings.problems import ProjectError

KEY_INTERVAL = timedelta(minutes=1)  # between reads of the configuration file, for a new API key
TLS_VALUES = ("", "true", "1", "false", "0")
NOT_LISTED = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.NOT_FOUND)

_log = logging.getLogger(__name__)


def configured_address() -> str | None:
    """Return the Temporal address from TEMPORAL_* or a profile, if configured. Raises TemporalUnavailableError."""
    return _read_config().get("target_host")


def configured_namespace() -> str | None:
    """Return the namespace from TEMPORAL_* or a profile, if configured. Raises TemporalUnavailableError."""
    return _read_config().get("namespace")


def _read_config() -> ClientConnectConfig:
    tls = os.environ.get("TEMPORAL_TLS", "")
    if tls.lower() not in TLS_VALUES:
        raise TemporalUnavailableError(f"TEMPORAL_TLS={truncate(tls, 100)}: expected true or false")
    try:
        config = _load_config()
    except (RuntimeError, OSError, ValueError) as error:
        raise TemporalUnavailableError(f"Temporal's configuration does not load: {truncate(str(error))}") from None
    if (target := config.get("target_host")) is not None:
        place = "TEMPORAL_ADDRESS" if os.environ.get("TEMPORAL_ADDRESS") else "the address in Temporal's configuration"
        _check_target(target, place)
    return config


def _check_target(target: str, place: str) -> None:
    """Raise TemporalUnavailableError if this is not host:port."""
    host, _, port = target.rpartition(":")
    if "://" in target:
        reason = f"leave out {target.partition('://')[0]}://"
    elif not target.isprintable() or " " in target:
        reason = "it contains a blank or a control character"
    elif not host:
        reason = "it has no host" if ":" in target else "it has no port"
    elif ":" in host and not host.startswith("["):
        reason = "an IPv6 address is written in brackets"
    elif not (port.isascii() and port.isdecimal() and 0 < int(port[:6]) <= MAX_PORT):
        reason = "its port is not a number from 1 to 65535"
    else:
        return
    shown = truncate(target, 200)
    raise TemporalUnavailableError(f"{place}={shown!a}: expected host:port such as 127.0.0.1:7233; {reason}")


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
    if address:
        _check_target(address, "address")
    config: ClientConnectConfig = {**(options or {}), "target_host": address} if address else configured
    target = config.setdefault("target_host", "localhost:7233")
    if not is_loopback(target.rsplit(":", 1)[0].strip("[]")) and not config.get("tls") and not config.get("api_key"):
        raise TemporalUnavailableError(
            f"{target} is not on this machine: set TEMPORAL_TLS or TEMPORAL_API_KEY to connect to it"
        )
    try:
        client = await Client.connect(**config, data_converter=converter_for(codec, payloads))
    except (RuntimeError, OSError, ValueError, RPCError) as error:
        reason = "connection refused" if "ConnectionRefused" in str(error) else truncate(str(error))
        raise TemporalUnavailableError(f"no Temporal server answers at {target}: {reason}") from None
    client = Client(**with_guard(client.config()))
    if guard := guard_of(client):
        await guard.check()
    return client


def adopt_converter(
    existing: DataConverter, codec: AesGcmCodec | None, payloads: StorageDriver | None
) -> DataConverter:
    """Return Perdure's converter over another one, with its codec and storage if it has them. Raises ProjectError."""
    kind, other, storage = existing.payload_converter_class, existing.payload_codec, existing.external_storage
    extended = extend_payload_converter(kind)
    if extended is None:
        raise ProjectError(
            f"this client's payload converter is {kind.__name__}, which does not derive from "
            "temporalio.contrib.pydantic's PydanticPayloadConverter: derive it, or give Perdure a client of its own"
        )
    ours = replace(converter_for(codec, payloads), payload_converter_class=extended)
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
            _log.warning("the API key cannot be read again: %s", truncate(str(error)))
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
