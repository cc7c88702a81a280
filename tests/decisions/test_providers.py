"""Whom the name of a model means."""

import pytest

from perdure.decisions.model_names import provider_of


@pytest.mark.parametrize(
    ("name", "provider", "model"),
    [
        ("claude-sonnet-5-5", "anthropic", "claude-sonnet-5-5"),
        ("anthropic:claude-sonnet-5-5", "anthropic", "claude-sonnet-5-5"),
        ("local:qwen3", "local", "qwen3"),
        ("local:llama3:8b", "local", "llama3:8b"),
        ("llama3:8b", "anthropic", "llama3:8b"),
        ("anthropic.claude-opus-5-v1:0", "anthropic", "anthropic.claude-opus-5-v1:0"),
        ("aws:eu.anthropic.claude-opus-5-v1:0", "aws", "eu.anthropic.claude-opus-5-v1:0"),
        ("Local:qwen3", "anthropic", "Local:qwen3"),
        ("local:", "anthropic", "local:"),
        (":8b", "anthropic", ":8b"),
    ],
)
def test_what_stands_before_the_first_colon_is_a_provider_only_where_one_is_named_so(
    name: str, provider: str, model: str
) -> None:
    assert provider_of(name, {"local", "aws"}) == (provider, model)
