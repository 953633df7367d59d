"""Which places an event may be sent to, by address and by the way they are written."""

from ipaddress import ip_address

import pytest

from registry.events.errors import TargetRefused
from registry.events.targets import Targets, is_public

PRIVATE = (
    *("0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "127.8.8.8", "169.254.169.254"),
    *("172.16.0.1", "172.31.255.255", "192.0.0.8", "192.0.2.1", "192.168.1.1", "198.18.0.1"),
    *("198.51.100.7", "203.0.113.9", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "fe80::1", "fe80::1%1"),
    *("fc00::1", "fd12:3456::1", "fec0::1", "ff02::1", "2001:db8::1", "64:ff9b::7f00:1"),
    *("64:ff9b:1::a00:1", "2002:7f00:1::", "2001:0:4136:e378:8000:63bf:80ff:fffe"),
    *("192.88.99.1", "2002:c058:6301::", "3fff::1", "3fff:fff::1", "5f00::1", "100::1"),
    *("100:0:0:1::1", "2001:2::1", "2001:10::1", "4000::1"),
)
PUBLIC = (
    *("1.1.1.1", "93.184.215.14", "172.15.0.1", "172.32.0.1", "2606:4700:4700::1111"),
    *("192.88.98.1", "192.88.100.1", "2620:4f:8000::1", "3ffe:ffff::1"),
)


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_that_is_not_everybodys_is_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", [*PUBLIC, "::ffff:1.1.1.1", "64:ff9b::101:101"])
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://127.0.0.1/x", "127.0.0.1, which is not a public .*WEBHOOKS__ALLOW_PRIVATE=true"),
        ("https://[::1]:8443/", "::1, which is not a public address"),
        ("https://[::ffff:7f00:1]/", "not a public address"),
        ("https://169.254.169.254/latest/meta-data/", "not a public address"),
        ("https://localhost/", "localhost is (127.0.0.1|::1), which is not"),
        ("https://2130706433/", "is a number and not a host"),
        ("https://0x7f000001/", "is a number and not a host"),
        ("https://0177.0.0.1/", "is a number and not a host"),
        ("https://127.1/", "is a number and not a host"),
        ("https://127.0.0.0x1/", "is a number and not a host"),
        ("http://1.1.1.1/", "does not begin with https://.*MODELYARD_WEBHOOKS__ALLOW_PRIVATE=true"),
        ("ftp://1.1.1.1/", "does not begin with https://$"),
        ("file:///etc/passwd", "does not begin with https://"),
        ("https://user:pass@1.1.1.1/", "user or a password"),
        ("https:///nowhere", "needs a host"),
        ("https://1.1.1.1:0/", "port 0"),
        ("https://1.1.1.1:99999/", "not a URL"),
        ("https://1.1.1.1\\@127.0.0.1/", "user or a password|backslash"),
        ("https://1.1.1.1/ x", "without blanks"),
        ("https://nobody.invalid/", "nobody.invalid is not known"),
        ("https://" + "a" * 70 + ".example/", "is not known"),
    ],
)
async def test_a_place_that_is_not_public_is_refused_with_the_reason(url: str, reason: str) -> None:
    with pytest.raises(TargetRefused, match=f"^url: .*({reason})"):
        await Targets().check(url)


async def test_a_public_address_is_taken_and_a_private_one_where_it_is_allowed() -> None:
    await Targets().check("https://1.1.1.1:8443/hook?a=b")
    await Targets(allow_private=True).check("http://127.0.0.1:8000/hook")
