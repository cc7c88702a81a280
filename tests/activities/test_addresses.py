from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.activities.http import is_metadata, is_own, is_public, parse_literal


@pytest.mark.parametrize(
    "text",
    [
        "10.1.2.3",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "100.64.0.1",
        "100.127.255.255",
        "169.254.1.1",
        "198.18.0.1",
        "198.19.255.255",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "0.1.2.3",
        "127.255.255.254",
        "192.0.0.8",
        "192.0.2.1",
        "192.88.99.1",
        "198.51.100.1",
        "203.0.113.1",
        "::",
        "::1",
        "fc00::1",
        "fd12::1",
        "fe80::1",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        "2001::1",
        "64:ff9b:1::1",
        "100::1",
        "::ffff:10.0.0.1",
        "::10.0.0.1",
        "64:ff9b::10.0.0.1",
        "2002:a00:1::",
        "4000::1",
        "5f00::1",
        "100:0:0:1::1",
        "2001:1::1",
        "2001:2::1",
        "2001:3::1",
        "2001:4:112::1",
        "2001:10::1",
        "2001:20::1",
        "2001:30::1",
        "2620:4f:8000::1",
        "3ffe::1",
        "3fff::1",
        "3fff:fff:ffff::1",
        "3fff:1000::1",
        "2d00::1",
        "2fff::1",
        "192.0.0.9",
        "192.31.196.1",
        "192.52.193.1",
        "192.175.48.1",
        "64:ff9b::c01f:c401",
        "::ffff:192.52.193.1",
    ],
)
def test_addresses_of_no_public_range_are_not_public(text: str) -> None:
    assert not is_public(ip_address(text))


@pytest.mark.parametrize(
    "text", ["93.184.216.34", "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "64:ff9b::101:101"]
)
def test_public_addresses_are(text: str) -> None:
    assert is_public(ip_address(text))
    assert not is_metadata(ip_address(text))


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_judged_alike_inside_ipv6(address: object) -> None:
    inner = ip_address(str(address))
    for wrapped in (f"::ffff:{inner}", f"64:ff9b::{inner}", f"::{inner}"):
        assert is_public(ip_address(wrapped)) == is_public(inner)
        assert is_metadata(ip_address(wrapped)) == is_metadata(inner)


def test_odd_spellings_are_addresses_and_names_are_not() -> None:
    for text in ("127.1", "2130706433", "0x7f000001", "0177.0.0.1"):
        assert parse_literal(text) == ip_address("127.0.0.1")
    for text in ("example.com", "1.example.com", "a", "", "0x7f000001.com"):
        assert parse_literal(text) is None


def test_a_machine_knows_its_own_addresses() -> None:
    assert is_own(ip_address("127.0.0.1"))
    assert not is_own(ip_address("192.0.2.1"))
