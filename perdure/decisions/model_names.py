"""The provider that a model's name refers to."""

from collections.abc import Collection

DEFAULT = "anthropic"  # the provider of a plain name: Anthropic, or the server at ANTHROPIC_BASE_URL


def provider_of(name: str, providers: Collection[str]) -> tuple[str, str]:
    """Return the provider and its name for the model: from `provider:model`, or a plain name of the default provider.

    The text before the first colon is a provider only if one has that name: `llama3:8b` and the ids of Bedrock, which
    end in `-v1:0`, are plain names.
    """
    front, colon, model = name.partition(":")
    return (front, model) if colon and model and front in (DEFAULT, *providers) else (DEFAULT, name)
