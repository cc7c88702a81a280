"""A key of a model goes to another machine by https only, as one of Temporal does."""

from pathlib import Path

import pytest

from settings import ProjectError, load_settings

LOCAL = '[model.providers.own]\nbase_url = "{url}"\napi_key_env = "OWN_KEY"\n'


def read(folder: Path, url: str, key: str) -> None:
    load_settings({"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": key}, folder)
    (folder / "perdure.toml").write_text(LOCAL.format(url=url), encoding="utf-8")
    load_settings({"ANTHROPIC_BASE_URL": "http://127.0.0.1:9", "OWN_KEY": key}, folder)


@pytest.mark.parametrize("url", ["http://model.example/", "http://10.0.0.1:8080", "http://localhost.evil.test"])
def test_a_key_is_not_sent_in_plain_text_to_another_machine(tmp_path: Path, url: str) -> None:
    with pytest.raises(
        ProjectError, match="ANTHROPIC_BASE_URL: a key is sent to another machine over https:// only"
    ) as told:
        load_settings({"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "k-123456789"}, tmp_path)
    assert "k-123456789" not in str(told.value)
    (tmp_path / "perdure.toml").write_text(LOCAL.format(url=url), encoding="utf-8")
    with pytest.raises(ProjectError, match=r"model\.providers\.own\.base_url: a key is sent to another machine"):
        load_settings({"ANTHROPIC_BASE_URL": "http://127.0.0.1:9", "OWN_KEY": "k-123456789"}, tmp_path)


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
def test_without_a_key_or_within_this_machine_plain_text_will_do(tmp_path: Path, url: str, key: str) -> None:
    read(tmp_path, url, key)
