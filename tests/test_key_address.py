"""A key of a model goes to another machine by https only, as one of Temporal does."""

from pathlib import Path

import pytest

from tests.projects import load_project, rejection_line

LOCAL = '[model.providers.own]\nbase_url = "{url}"\napi_key_env = "OWN_KEY"\n'


@pytest.mark.parametrize("url", ["http://model.example/", "http://10.0.0.1:8080", "http://localhost.evil.test"])
def test_a_key_is_not_sent_in_plain_text_to_another_machine(tmp_path: Path, url: str) -> None:
    remote = "a key is sent to another machine over https:// only"
    line = rejection_line(tmp_path, ANTHROPIC_BASE_URL=url, ANTHROPIC_API_KEY="k-123456789")
    assert f"ANTHROPIC_BASE_URL: {remote}" in line
    assert "k-123456789" not in line
    local = rejection_line(
        tmp_path, LOCAL.format(url=url), ANTHROPIC_BASE_URL="http://127.0.0.1:9", OWN_KEY="k-123456789"
    )
    assert "model.providers.own.base_url: a key is sent to another machine" in local


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("https://model.example/", "k-123456789"),
        ("http://127.0.0.1:8080", "k-123456789"),
        ("http://localhost:8080", "k-123456789"),
        ("http://[::1]:8080", "k-123456789"),
        ("http://model.example/", ""),
    ],
)
def test_plain_text_is_allowed_without_a_key_or_on_this_machine(tmp_path: Path, url: str, key: str) -> None:
    load_project(tmp_path, ANTHROPIC_BASE_URL=url, ANTHROPIC_API_KEY=key)
    load_project(tmp_path, LOCAL.format(url=url), ANTHROPIC_BASE_URL="http://127.0.0.1:9", OWN_KEY=key)
