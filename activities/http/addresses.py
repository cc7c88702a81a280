"""Checks of the IP addresses that an agent may reach: public ones only."""

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

Address = IPv4Address | IPv6Address

# The clouds' instance metadata services, which return the machine's keys.
METADATA_NAMES = frozenset({"metadata.google.internal", "metadata.goog"})
METADATA_ADDRESSES = frozenset(
    ip_address(text)
    for text in (
        "100.100.100.200",
        "168.63.129.16",
        "169.254.169.254",
        "169.254.170.2",
        "169.254.170.23",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd20:ce::254",
    )
)

# Networks that `is_global` does not exclude, or not in every Python release.
_NOT_PUBLIC = [
    ip_network(text)
    for text in ("100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4")
]
_GLOBAL_UNICAST = ip_network("2000::/3")
_CARRIES_IPV4 = [ip_network("64:ff9b::/96"), ip_network("::/96")]  # NAT64, and the old "compatible" form


def parse_literal(host: str) -> Address | None:
    """Parse an address, including `inet_aton` forms (127.1, 0x7f000001), unless `host` is a name."""
    try:
        return ip_address(host)
    except ValueError:
        pass
    if not host.isascii() or not host[:1].isdigit():
        return None
    try:
        return IPv4Address(socket.inet_aton(host))
    except OSError:
        return None


def is_metadata(address: Address) -> bool:
    """Return True for a metadata service, which stays blocked even for an allowed host."""
    return _unwrap_ipv4(address) in METADATA_ADDRESSES or address in METADATA_ADDRESSES


def is_public(address: Address) -> bool:
    """Return True if the address is the same host for everyone on the internet."""
    inner = _unwrap_ipv4(address)
    if not inner.is_global or inner.is_multicast or any(inner in network for network in _NOT_PUBLIC):
        return False
    return inner.version == 4 or inner in _GLOBAL_UNICAST


def is_own(address: Address) -> bool:
    """Return True if this machine has the address. Nothing is sent."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))
        except (OSError, ValueError):
            return False
        # A machine connects to itself from the same address.
        return ip_address(str(probe.getsockname()[0]).partition("%")[0]) == address


def _unwrap_ipv4(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address carries and the network would use, else the address."""
    if isinstance(address, IPv4Address):
        return address
    if inner := address.ipv4_mapped or address.sixtofour:
        return inner
    if any(address in network for network in _CARRIES_IPV4):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address
