"""Variables that our libraries read: understood, or one line with the name and the value."""

import ssl
from pathlib import Path
from unittest.mock import patch

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure.process.streams import normalize_environment
from perdure.settings import load_settings
from perdure.settings.libraries import check_libraries
from perdure.settings.problems import ProjectError
from tests.projects import rejection_line


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NO_PROXY", "localhost,127.0.0.1,::1,.example.com,*.example.org,10.0.0.0/8,host:8080"),
        ("no_proxy", "localhost, [::1], [fe80::1]"),
        ("HTTPS_PROXY", "http://user:secret@proxy.example:3128"),
        ("ALL_PROXY", "socks5h://127.0.0.1:1080"),
        ("http_proxy", "proxy.example:3128"),
        ("COLUMNS", "²"),
        ("SSL_CERT_FILE", ""),
    ],
)
def test_readable_variables_are_accepted(
    name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {name: value}
    normalize_environment(env)
    load_settings(env, tmp_path)
    for left, text in env.items():
        monkeypatch.setenv(left, text)
    httpx.Client().close()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("NO_PROXY", "a,[::1", "'[::1' is not a host"),
        ("no_proxy", "a b", "'a b' is not a host"),
        ("NO_PROXY", "::/0", "'::/0' is a network of IPv6"),
        ("no_proxy", "localhost,FD00::/8,a", "'FD00::/8' is a network of IPv6"),
        ("NO_PROXY", "::g", "'::g': the HTTP library cannot read it"),
        ("NO_PROXY", "ä.example", "the HTTP library cannot read it"),
        ("HTTPS_PROXY", "http://1.2.3.400", "the HTTP library cannot read it"),
        ("ALL_PROXY", " http://a", "begins with one of http://"),
        ("HTTPS_PROXY", "htp://x", "begins with one of http://"),
        ("all_proxy", "http://[::1", "not a URL"),
        ("HTTP_PROXY", "http://x:port", "not a URL"),
        ("HTTP_PROXY", "http://", "has no host"),
        ("SSL_CERT_FILE", "/nowhere.pem", "no certificates can be read there"),
        ("SSL_CERT_FILE", __file__, "no certificates can be read there"),
        ("SSLKEYLOGFILE", "/nowhere/keys", "cannot be written"),
    ],
)
def test_unreadable_variables_are_rejected_by_name(name: str, value: str, says: str, tmp_path: Path) -> None:
    line = rejection_line(tmp_path, **{name: value})
    assert line.startswith(f"{name}={value}: ")
    assert says in line


TLS = ssl.create_default_context()
HOSTS = st.text(st.sampled_from("a.:/[]*%1f@ -ä\x7f\u200b"), max_size=8)


@given(
    st.sampled_from(("NO_PROXY", "no_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY")),
    HOSTS | HOSTS.map("http://".__add__),
)
@example("NO_PROXY", "::/0")
@example("NO_PROXY", "http://[::1]")
@example("HTTPS_PROXY", " http://a")
def test_the_library_fails_on_no_value_that_is_accepted(name: str, value: str) -> None:
    env = {name: value}
    normalize_environment(env)
    try:
        check_libraries(env)
    except ProjectError:
        return
    with patch.dict("os.environ", env, clear=True):
        httpx.Client(verify=TLS).close()


def test_a_password_is_not_shown(tmp_path: Path) -> None:
    line = rejection_line(tmp_path, HTTPS_PROXY="htp://me:secret@x")
    assert "//…@x" in line
    assert "secret" not in line
