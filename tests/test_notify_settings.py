"""The settings `[[notify]]`: errors name the place, and secrets come from the environment."""

from pathlib import Path

import pytest

from perdure.features.notices.project import check_channels
from perdure.features.notices.settings import NotifyAccess
from perdure.settings import ProjectError, load_settings

SECRET = "whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQ="
HOOK = '[[notify]]\nname = "ops"\nkind = "webhook"\nurl = "https://ops.test/hook"\nsecret_env = "OPS"\n'


def write(folder: Path, text: str) -> Path:
    (folder / "perdure.toml").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HOOK + HOOK, "two channels are named ops"),
        (HOOK.replace('url = "https://ops.test/hook"\n', ""), "needs either url or url_env"),
        (HOOK.replace('secret_env = "OPS"\n', ""), "needs secret_env"),
        (HOOK.replace("webhook", "slack"), "needs url_env: its address holds a secret"),
        (HOOK.replace("webhook", "pigeon"), "'webhook', 'slack' or 'apprise'"),
        (HOOK + 'on = ["asleep"]\n', "'waiting', 'waiting_long'"),
        (HOOK + "on = []\n", "names no event"),
    ],
)
def test_a_channel_that_is_not_valid_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ProjectError) as refused:
        load_settings({}, write(tmp_path, text))
    assert message in str(refused.value)
    assert "perdure.toml" in str(refused.value)


def test_a_secret_that_is_not_set_stops_the_worker_and_not_a_client(tmp_path: Path) -> None:
    settings = load_settings({}, write(tmp_path, HOOK))
    with pytest.raises(ProjectError, match="ops: OPS is not set"):
        check_channels(settings)
    settings = load_settings({"OPS": SECRET}, tmp_path)
    check_channels(settings)
    assert settings.access["notify"]["ops"] == NotifyAccess("https://ops.test/hook", SECRET)
    assert SECRET not in repr(settings)
    assert SECRET not in settings.secrets.redact(f"it is {SECRET}")


@pytest.mark.parametrize("address", ["syslog://localhost", "dbus://", "http://ops.test", "ntfys"])
def test_an_address_that_apprise_may_not_use_is_refused_without_its_text(tmp_path: Path, address: str) -> None:
    write(tmp_path, '[[notify]]\nname = "mail"\nkind = "apprise"\nurl_env = "MAIL"\n')
    with pytest.raises(ProjectError, match="MAIL: expected an address of Apprise") as refused:
        load_settings({"MAIL": address}, tmp_path)
    assert address not in str(refused.value)
