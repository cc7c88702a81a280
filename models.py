"""Which model answers: a client for each provider of the project, each asked at its own pace."""

from importlib.util import find_spec

import httpx2
from anthropic import AsyncAnthropic, AsyncAnthropicBedrock, AsyncAnthropicVertex

from activities.model import MessagesModel
from activities.pace import Pace
from activities.providers import Models, Provider
from activities.rehearsal import RehearsalTransport
from decisions.providers import DEFAULT
from settings import ProjectError, ProviderSettings, Settings

NEEDED = {"bedrock": "boto3", "vertex": "google.auth"}  # by the SDK's own clients


def model_of(settings: Settings) -> Models:
    """The `anthropic` client in every case. Raises ProjectError.

    Without a key or an address of the default provider, the rehearsal answers for it, behind the client's transport.
    """
    described = settings.file.model.providers
    default = described.get(DEFAULT, ProviderSettings())
    providers = {DEFAULT: Provider(_default(settings), Pace(DEFAULT, default.requests_per_minute))}
    for name, each in described.items():
        if name != DEFAULT:
            endpoint = MessagesModel(_client(name, each, settings.keys.get(name)))
            providers[name] = Provider(endpoint, Pace(name, each.requests_per_minute))
    return Models(providers)


def _default(settings: Settings) -> MessagesModel:
    if settings.rehearses:
        transport = httpx2.AsyncClient(transport=RehearsalTransport())
        return MessagesModel(AsyncAnthropic(api_key="rehearsal", max_retries=0, http_client=transport))
    key = settings.api_key or "none"  # local servers ask for none, the SDK does
    return MessagesModel(AsyncAnthropic(api_key=key, base_url=settings.base_url, max_retries=0))


def _client(
    name: str, described: ProviderSettings, key: str | None
) -> AsyncAnthropic | AsyncAnthropicBedrock | AsyncAnthropicVertex:
    if described.api_key_env and key is None:
        raise ProjectError(f"model.providers.{name}: api_key_env names {described.api_key_env}, and that is not set")
    url = described.base_url
    match described.kind:
        case "messages":
            return AsyncAnthropic(api_key=key or "none", base_url=url, max_retries=0)
        case "bedrock":
            _needs(name, described.kind)
            return AsyncAnthropicBedrock(api_key=key, aws_region=described.region, base_url=url, max_retries=0)
        case "vertex":
            if key is None:  # with a token the client needs nobody to get one
                _needs(name, described.kind)
            region, project = described.region or "", described.project or ""
            return AsyncAnthropicVertex(
                region=region, project_id=project, access_token=key, base_url=url, max_retries=0
            )


def _needs(name: str, kind: str) -> None:
    try:
        found = find_spec(NEEDED[kind])
    except ModuleNotFoundError:  # of the package around it
        found = None
    if found is None:
        extra = f'pip install "perdure[{kind}]"'
        raise ProjectError(f'model.providers.{name}: kind = "{kind}" needs the package {NEEDED[kind]}: {extra}')
