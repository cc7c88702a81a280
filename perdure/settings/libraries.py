"""Checks of the environment variables that our libraries read: proxies and certificates."""

import re
import ssl
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from perdure.settings.problems import ProjectError

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
SCHEMES = ("http", "https", "socks5", "socks5h")  # supported by httpx
NO_PROXY = "NO_PROXY"
IPV4, IPV6 = 4, 6
_BRACKETED = re.compile(r"\[([0-9A-Fa-f:.]+)\]")
_HOST = re.compile(r"[^\s\[\]@?#]+")
MAX_SHOWN = 100  # characters of a value


def check_libraries(env: Mapping[str, str]) -> None:
    """Raise ProjectError, with name and value, for a value that would cause a traceback in a library."""
    for name in (spelled for proxy in PROXIES for spelled in _spellings(proxy)):
        if reason := _proxy_error(env.get(name, "")):
            raise _variable_error(name, env[name], reason)
    for name in _spellings(NO_PROXY):
        for host in filter(None, map(str.strip, env.get(name, "").split(","))):
            if reason := _host_error(host):
                raise _variable_error(name, env[name], reason)
    _check_certificates(env)


def _spellings(name: str) -> tuple[str, str]:
    return name, name.lower()


def _variable_error(name: str, value: str, reason: str) -> ProjectError:
    without_password = re.sub(r"//[^/@\s]*@", "//…@", value)
    return ProjectError(f"{name}={without_password[:MAX_SHOWN]}: {reason}; fix the variable, or unset it")


def _proxy_error(value: str) -> str | None:
    if not value:
        return None
    try:
        url = urlsplit(value if "://" in value else f"http://{value}")
        _ = url.port
    except ValueError as error:
        return f"it is not a URL ({error})"
    if value != value.strip() or url.scheme.lower() not in SCHEMES:
        return f"a proxy URL begins with one of {', '.join(f'{scheme}://' for scheme in SCHEMES)}"
    return _library_error(url.geturl()) if url.hostname else "it has no host"


def _host_error(host: str) -> str | None:
    """Return the reason why the HTTP library fails on an entry of NO_PROXY, if it does."""
    if not _is_host(host):
        return f"{host!r} is not a host, an address or a domain"
    address = _parse_address(host)
    if address is None and "/" in host and _parse_address(host.partition("/")[0]) == IPV6:
        return f"{host!r} is a network of IPv6, which the HTTP library does not understand: list the addresses"
    patterns = {None: f"all://*{host}", IPV4: f"all://{host}", IPV6: f"all://[{host}]"}
    reason = _library_error(host if "://" in host else patterns[address])
    return reason and f"{host!r}: {reason}"


def _parse_address(text: str) -> int | None:
    try:
        return ip_address(text).version
    except ValueError:
        return None


def _library_error(url: str) -> str | None:
    """Return the reason why the HTTP library rejects the URL, if it does."""
    import httpx  # takes long to import, and most environments set no such variable

    try:
        httpx.URL(url)
    except httpx.InvalidURL as error:
        return f"the HTTP library cannot read it ({error})"
    return None


def _is_host(text: str) -> bool:
    text = text.split("://", 1)[-1]
    address = _BRACKETED.sub(r"\1", text)
    if not _HOST.fullmatch(address):
        return False
    _, colon, port = text.rpartition(":")
    is_plain = text.count(":") == 1
    return not (is_plain and colon) or port.isdecimal()


def _check_certificates(env: Mapping[str, str]) -> None:
    """Check the files that are used for each TLS connection."""
    if path := env.get("SSL_CERT_FILE"):
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
        except (OSError, ValueError) as error:
            raise _variable_error(
                "SSL_CERT_FILE", path, f"no certificates can be read there ({_error_text(error)})"
            ) from None
    if path := env.get("SSLKEYLOGFILE"):
        try:
            Path(path).open("ab").close()
        except (OSError, ValueError) as error:
            raise _variable_error("SSLKEYLOGFILE", path, f"it cannot be written ({_error_text(error)})") from None


def _error_text(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
