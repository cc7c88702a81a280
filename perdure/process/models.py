"""Model clients: one for each provider of the project, each with its own rate limit."""

import re
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import httpx2
from anthropic import AsyncAnthropic, AsyncAnthropicBedrock, AsyncAnthropicVertex, DefaultAsyncHttpxClient

from perdure.activities.providers.anthropic import MessagesModel
from perdure.activities.providers.fallback import FallbackModel, Provider
from perdure.activities.providers.port import Admission, Model, SharedLimit
from perdure.activities.providers.rate_limit import RateLimiter
from perdure.activities.providers.relay import RelayModel
from perdure.activities.providers.replies.stream import bound_body
from perdure.decisions.model_names import DEFAULT
from perdure.extras import install_command
from perdure.settings import ProjectError, Settings
from perdure.settings.file import ProviderSettings, provider_table
from perdure.testkit.rehearsal.model import RehearsalTransport

if TYPE_CHECKING:
    from openai import AsyncOpenAI

# By the SDK's own clients, with what installs them.
REQUIRED_PACKAGES = {"bedrock": "boto3", "vertex": "google.auth", "openai": "openai"}  # of the extra of that name

# By kind and by host, as OpenTelemetry's conventions name them.
SYSTEMS = {
    "bedrock": "aws.bedrock",
    "vertex": "gcp.vertex_ai",
    "api.anthropic.com": "anthropic",
    "api.openai.com": "openai",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "api.mistral.ai": "mistral_ai",
}

FIRST_PART = 0.25  # of a shared limit, until the worker knows its part

ModelClient: TypeAlias = "AsyncAnthropic | AsyncAnthropicBedrock | AsyncAnthropicVertex | AsyncOpenAI"


def open_models(
    settings: Settings,
    closing: AsyncExitStack,
    admission: Admission | None = None,
    shared: Mapping[str, SharedLimit] = MappingProxyType({}),
) -> FallbackModel:
    """Return the clients of all providers, which `closing` closes. Raises ProjectError before it opens one.

    `shared` are the limits that workers share, by provider.
    """
    described = settings.file.model.providers
    providers: dict[str, Provider] = {}
    for name, client in create_clients(settings).items():
        closing.push_async_exit(client)
        provider = described.get(name, ProviderSettings())
        whole = provider.requests_per_minute
        limiter = RateLimiter(name, whole * FIRST_PART if whole and name in shared else whole)
        system = "rehearsal" if name == DEFAULT and settings.is_rehearsal else system_of(name, provider.kind, client)
        providers[name] = Provider(_create_endpoint(client), limiter, system, shared.get(name))
    for name, provider in described.items():
        if provider.is_relay:
            providers[name] = Provider(RelayModel(), RateLimiter(name), provider.kind)
    return FallbackModel(providers, admission)


def system_of(name: str, kind: str, client: ModelClient) -> str:
    """Return the provider in the words of OpenTelemetry, else by the project's name or, without one, by its host."""
    host = client.base_url.host
    if host.endswith(".openai.azure.com"):
        return "azure.ai.openai"
    return SYSTEMS.get(kind) or SYSTEMS.get(host) or (host if name == DEFAULT else name)


def _create_endpoint(client: ModelClient) -> Model:
    if isinstance(client, AsyncAnthropic | AsyncAnthropicBedrock | AsyncAnthropicVertex):
        return MessagesModel(client)
    from perdure.activities.providers.openai import (
        ChatModel,  # its SDK is optional, and takes a quarter of a second to load
    )

    return ChatModel(client)


def create_clients(settings: Settings) -> dict[str, ModelClient]:
    """Return a client for each provider, not yet connected. Raises ProjectError.

    The rehearsal model replaces the transport of the default provider's client.
    """
    settings.check_models()
    clients: dict[str, ModelClient] = {DEFAULT: _default_client(settings)}
    for name, described in settings.file.model.providers.items():
        if name != DEFAULT and not described.is_relay:
            headers = settings.headers.get(provider_table(name), {})
            clients[name] = _create_client(name, described, settings.keys.get(name), headers)
    return clients


def _default_client(settings: Settings) -> AsyncAnthropic:
    if settings.is_rehearsal:
        transport = httpx2.AsyncClient(transport=RehearsalTransport())
        return AsyncAnthropic(api_key="rehearsal", max_retries=0, http_client=transport)
    return _messages_client(settings.api_key, settings.base_url, settings.headers.get(provider_table(DEFAULT), {}))


def _messages_client(key: str | None, base_url: str | None, headers: Mapping[str, str]) -> AsyncAnthropic:
    """Create a client. The SDK requires a key, which local servers do not, and adds the `/v1` of many base URLs."""
    root = re.sub(r"/v1(/messages)?/*$", "", base_url) if base_url else None
    return AsyncAnthropic(
        api_key=key or "none", base_url=root, max_retries=0, default_headers=headers, http_client=create_http_client()
    )


def _chat_client(key: str | None, base_url: str | None, headers: Mapping[str, str]) -> "AsyncOpenAI":
    from openai import AsyncOpenAI

    root = re.sub(r"(/chat/completions)?/*$", "", base_url or "")
    return AsyncOpenAI(
        api_key=key or "none", base_url=root, max_retries=0, default_headers=headers, http_client=create_http_client()
    )


def create_http_client() -> httpx2.AsyncClient:
    """Return a client as the SDKs take it: bodies uncompressed and bounded, and closed in order."""
    hooks: dict[str, list[Callable[..., Any]]] = {"response": [bound_body]}
    return DefaultAsyncHttpxClient(headers={"accept-encoding": "identity"}, event_hooks=hooks)


def _create_client(name: str, described: ProviderSettings, key: str | None, headers: Mapping[str, str]) -> ModelClient:
    if described.api_key_env and key is None:
        raise ProjectError(f"model.providers.{name}: api_key_env names {described.api_key_env}, and that is not set")
    if described.kind == "messages":
        return _messages_client(key, described.base_url, headers)
    if described.kind == "openai":
        _require_package(name, described.kind)
        return _chat_client(key, described.base_url, headers)
    if described.kind == "bedrock" or key is None:  # Vertex' client fetches no token if it has one
        _require_package(name, described.kind)
    shared: dict[str, Any] = {
        "base_url": described.base_url,
        "max_retries": 0,
        "default_headers": headers,
        "http_client": create_http_client(),
    }
    if described.kind == "bedrock":
        return AsyncAnthropicBedrock(api_key=key, aws_region=described.region, **shared)
    region, project = described.region or "", described.project or ""
    return AsyncAnthropicVertex(region=region, project_id=project, access_token=key, **shared)


def _require_package(name: str, kind: str) -> None:
    package = REQUIRED_PACKAGES[kind]
    try:
        spec = find_spec(package)
    except ModuleNotFoundError:  # its parent package
        spec = None
    if spec is None:
        command = install_command(kind)
        raise ProjectError(f'model.providers.{name}: kind = "{kind}" needs the package {package}: {command}')
