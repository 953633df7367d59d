"""Where a webhook may lead: not to this machine, nor to what only this network can reach.

A name is resolved here and the connection goes to the address that was judged, so that a name
cannot lead elsewhere a moment later.
"""

import asyncio
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import SplitResult, urlsplit

from registry.events.errors import TargetRefused

LONGEST_URL = 2000
_RESOLVE_S = 5.0
_NUMERIC = re.compile(r"(0x[0-9a-f]*|[0-9]+)", re.IGNORECASE)
_ALLOWING = "the operator may allow those with MODELYARD_WEBHOOKS__ALLOW_PRIVATE=true"
_TRANSLATED = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
"""Addresses of IPv4 as a gateway for IPv6 spells them: the last 32 bits."""

_SPECIAL = (
    IPv4Network("192.0.0.0/24"),  # protocols' own, which Python only knows in part to be private
    IPv4Network("192.88.99.0/24"),  # relays of 6to4, which nobody runs any more
    IPv6Network("3fff::/20"),  # documentation
)
"""What IANA's registries of special-purpose addresses do not call globally reachable, and Python,
or an older one, does."""

_GIVEN_OUT = IPv6Network("2000::/3")
"""Everything else of IPv6 is special or nobody's."""

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Targets:
    allow_private: bool = False
    """Private addresses, and plain HTTP."""

    async def check(self, url: str) -> None:
        """Refuse a URL that no event would be sent to."""
        parts = self.read(url)
        await self.addresses(parts.hostname or "", parts.port or 443)

    def read(self, url: str) -> SplitResult:
        if len(url) > LONGEST_URL or not url.isascii() or not url.isprintable() or " " in url:
            raise TargetRefused(f"not 1 to {LONGEST_URL} printable ASCII characters without blanks")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise TargetRefused(f"not a URL: {error}") from None
        allowed = ("https", "http") if self.allow_private else ("https",)
        if parts.scheme not in allowed:
            beginnings = " or ".join(f"{scheme}://" for scheme in allowed)
            hint = f"; {_ALLOWING}" if parts.scheme == "http" else ""
            raise TargetRefused(f"does not begin with {beginnings}{hint}")
        if parts.username is not None or parts.password is not None:
            raise TargetRefused("holds a user or a password; the signature says who sends")
        if not parts.hostname or "\\" in url or "#" in url or port == 0:
            raise TargetRefused("needs a host, and takes no backslash, fragment or port 0")
        _require_plain(parts.hostname)
        return parts

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """Those that the host has at this moment, if all of them may be connected to."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_RESOLVE_S):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except TimeoutError:
            raise TargetRefused(f"{host} is not known: no answer in {_RESOLVE_S:g} s") from None
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "not a host name"
            raise TargetRefused(f"{host} is not known: {reason}") from None
        addresses = list(dict.fromkeys(str(place[0]) for *_, place in found))
        for address in addresses:
            if not self.allow_private and not is_public(ip_address(address)):
                raise TargetRefused(
                    f"{host} is {address}, which is not a public address; {_ALLOWING}"
                )
        return addresses


def is_public(address: Address) -> bool:
    """Whether the whole internet means the same machine by it."""
    if isinstance(address, IPv6Address):
        hidden = _hidden(address)
        if hidden is not None:
            return is_public(hidden)
        if address not in _GIVEN_OUT:
            return False
    if any(address in network for network in _SPECIAL):
        return False
    unusual = address.is_multicast or address.is_reserved or address.is_unspecified
    return address.is_global and not unusual


def _hidden(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that this one leads to, if it is a mere spelling of one."""
    if any(address in network for network in _TRANSLATED):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]


def _require_plain(host: str) -> None:
    """2130706433, 0177.1 and 0x7f000001 are all 127.0.0.1 to some resolvers. Nobody needs them."""
    last = host.rstrip(".").rpartition(".")[2]
    if ":" in host or not _NUMERIC.fullmatch(last):
        return
    try:
        IPv4Address(host)
    except ValueError:
        raise TargetRefused(f"{host} is a number and not a host; write it as 192.0.2.1") from None
