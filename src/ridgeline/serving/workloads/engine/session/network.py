"""How the nodes of one job reach each other: the head's address, and the variables by which engines choose a network.

A name such as the first node's own is often 127.0.1.1 there, and a node with several networks has several addresses.
The kernel knows which one leads to another node: that of the socket it would send from. No packet is sent to ask it.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterable, Mapping

_HOSTS = "RIDGELINE_HOSTS"  # the job's nodes, as its batch system names them
_ADDRESS_OF = 0x8915  # SIOCGIFADDR
_ELSEWHERE = "192.0.2.1"  # an address that nobody has: the way there is the default route


def head_address(interface: str, hosts: Iterable[str]) -> str:
    """The address by which other nodes reach this one: of the interface the site names, else on the way to them."""
    if interface:
        return _address_of(interface)
    own = socket.gethostname().partition(".")[0]
    ways = [way for host in hosts if host.partition(".")[0] != own and (way := _address_towards(host))]
    found = next((way for way in (*ways, _address_towards(own), _address_towards(_ELSEWHERE)) if not _loops(way)), "")
    return found or socket.gethostname()


def node_variables(head: str, interface: str, host_variable: str) -> dict[str, str]:
    """Network variables for an engine on this node, beyond what the study or the site says already.

    Gloo takes the interface of the host's own name, which may lead nowhere. NCCL looks for the fastest by itself, so it
    gets only what the site names.
    """
    address = _address_of(interface) if interface else _address_towards(head)
    if not address or (_loops(address) and not interface):
        return {}
    name = interface or _interface_of(address)
    variables = {host_variable: address, "GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": interface}
    return {variable: value for variable, value in variables.items() if value and variable not in os.environ}


def _address_towards(host: str) -> str:
    """Our own address on the way to `host`; empty where its name or the way is not known."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def _address_of(interface: str) -> str:
    """Its IPv4 address. OSError says that there is no such interface, or that it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _ADDRESS_OF, request)[20:24])
        except OSError as error:
            names = ", ".join(name for _, name in socket.if_nameindex())
            raise OSError(
                f"interface {interface} has no address on {socket.gethostname()} ({error.strerror}); the site's "
                f"`interface` must be one of: {names}"
            ) from error


def _interface_of(address: str) -> str:
    for _, name in socket.if_nameindex():
        try:
            if _address_of(name) == address:
                return name
        except OSError:
            continue
    return ""


def _loops(address: str) -> bool:
    return not address or address.startswith("127.")


def hosts_of_job(environment: Mapping[str, str]) -> list[str]:
    return environment.get(_HOSTS, "").split()
