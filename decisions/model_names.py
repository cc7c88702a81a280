"""Whom the name of a model means."""

from collections.abc import Collection

DEFAULT = "anthropic"  # whom a plain name means: Anthropic, or the server at ANTHROPIC_BASE_URL


def provider_of(name: str, providers: Collection[str]) -> tuple[str, str]:
    """The provider, and what the model is called there: `provider:model`, or a plain name of the default one.

    What stands before the first colon is a provider only where one is named so: `llama3:8b` and the ids of Bedrock,
    which end in `-v1:0`, are plain names.
    """
    front, colon, model = name.partition(":")
    return (front, model) if colon and model and front in (DEFAULT, *providers) else (DEFAULT, name)
