"""Names and addresses of one cluster, which no other cluster of this machine has."""

from __future__ import annotations

import ipaddress
import json
import socket
import subprocess
from pathlib import Path

from tools.k8s import cgroups

SLOTS = 16
SERVICES = "10.96.0.0/16"
API_PORT = 6443


class Slot:
    """A number that no other cluster has; names and addresses are made from it.

    A socket with an abstract address reserves the number. The kernel frees it at the end of the process that holds it.
    """

    def __init__(self) -> None:
        for number in range(SLOTS):
            mark = _reserve(number)
            if mark is None:
                continue
            self._mark = mark
            self.number = number
            if any(_in_use(ipaddress.ip_network(network)) for network in (f"{self._hosts}.0/24", self.pods)):
                mark.close()
                continue
            return
        raise OSError(
            f"no free address range for a cluster: all {SLOTS} of 10.64.0.0/24 to 10.64.{SLOTS - 1}.0/24 and 10.65.0.0/16 on are in use"
        )

    @property
    def name(self) -> str:
        """The network's name, and the prefix of the names of control groups and of the machine's link."""
        return _network_name(self.number)

    @property
    def link(self) -> str:
        """The machine's own link to the cluster; the kernel allows 15 characters."""
        return _link(self.number)

    @property
    def _hosts(self) -> str:
        return f"10.64.{self.number}"

    @property
    def control_plane(self) -> str:
        return f"{self._hosts}.254"

    @property
    def machine(self) -> str:
        """The address of this machine's own network in the cluster: pods reach it there."""
        return _machine_address(self.number)

    def node(self, index: int) -> str:
        return f"{self._hosts}.{index}"

    @property
    def pods(self) -> str:
        return f"10.{65 + self.number}.0.0/16"

    def pods_of(self, index: int) -> str:
        return f"10.{65 + self.number}.{index}.0/24"

    def close(self) -> None:
        self._mark.close()


def _in_use(network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    told = subprocess.run(["ip", "-json", "-4", "route"], capture_output=True, text=True, check=True)
    routes = [ipaddress.ip_network(route["dst"]) for route in json.loads(told.stdout) if route["dst"] != "default"]
    return any(network.overlaps(route) for route in routes)


def remove_leftovers() -> None:
    """Removes control groups of killed clusters, which nothing else removes, and their remaining links.

    Connections that wait for an answer keep a network alive for minutes after its last process.
    """
    for number in range(SLOTS):
        if (mark := _reserve(number)) is not None:
            with mark:
                for group in cgroups.named(f"{_network_name(number)}-"):
                    cgroups.remove(group)
                if Path("/sys/class/net", link := _link(number)).exists():
                    subprocess.run(["ip", "link", "delete", link], capture_output=True)


def network_name(server: str) -> str:
    """The name of the cluster whose API server has this URL."""
    return _network_name(_number(server))


def machine_address(server: str) -> str:
    """The address of this machine's own network in the cluster whose API server has this URL."""
    return _machine_address(_number(server))


def _reserve(number: int) -> socket.socket | None:
    mark = socket.socket(socket.AF_UNIX)
    try:
        mark.bind(f"\0monarch-k8s-{number}")
    except OSError:
        mark.close()
        return None
    return mark


def _number(server: str) -> int:
    return int(server.split(".")[2])


def _link(number: int) -> str:
    return f"mk8s{number}"


def _network_name(number: int) -> str:
    return f"monarch-k8s{number}"


def _machine_address(number: int) -> str:
    return f"10.64.{number}.253"
