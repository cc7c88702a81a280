"""An agent's card, which says what this server does and nothing more."""

from importlib.metadata import version

from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)

from perdure.contracts.agent import Agent
from perdure.contracts.media import MEDIA_TYPES

TEXT, JSON = "text/plain", "application/json"
VERSIONS = ("1.0", "0.3")


def describe_agent(agent: Agent, url: str, *, compat_0_3: bool, pushes: bool) -> AgentCard:
    """Return the card of an agent whose calls go to `url`."""
    about = agent.description or f"the agent {agent.name}"
    return AgentCard(
        name=agent.name,
        description=about,
        version=version("perdure"),
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version=each)
            for each in VERSIONS[: 2 if compat_0_3 else 1]
        ],
        capabilities=AgentCapabilities(streaming=True, push_notifications=pushes),
        security_schemes={"token": SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="bearer"))},
        security_requirements=[SecurityRequirement(schemes={"token": StringList()})],
        default_input_modes=[TEXT, JSON, *MEDIA_TYPES],
        default_output_modes=[TEXT, JSON],
        skills=[AgentSkill(id=agent.name, name=agent.name, description=about, tags=["run"])],
    )
