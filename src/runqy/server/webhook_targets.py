"""Where a webhook may go: the address that is connected to is the one that was checked."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

from runqy.errors import NotAllowedError, UnavailableError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")


def is_public(text: str) -> bool:
    """Whether an address belongs to the open internet, also the IPv4 address inside an IPv6 one."""
    address: Address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _TRANSLATED:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            address = inner
    return address.is_global and not address.is_multicast


async def checked_address(host: str, port: int, *, allow_private: bool) -> str:
    """The IP address to connect to. The name is not asked again, so it can't answer differently afterwards.

    Raises `UnavailableError` for a name that can't be resolved, `NotAllowedError` when any of its addresses is
    private, loopback or link-local and that is not allowed.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UnavailableError("the host's name can't be resolved") from error
    addresses = [str(entry[4][0]) for entry in found]
    if not addresses:
        raise UnavailableError("the host's name has no address")
    if not allow_private and not all(map(is_public, addresses)):
        raise NotAllowedError(
            "the target's address is not public", hint="RUNQY_WEBHOOK_ALLOW_PRIVATE=true allows private targets"
        )
    return addresses[0]
