"""Hosts on one machine: network namespaces that reach each other over a bridge, and can be cut off.

    with Network(3) as network:
        a, b, c = network.hosts
        server = a.popen("python", "-m", "http.server", "8000")
        b.run("curl", "http://h1:8000/")
        a.cut()            # nothing goes to it, nothing comes from it
        a.heal()

From a terminal: `python -m tools.netns up 3`, and in another one `python -m tools.netns exec h1 bash`.

| file | noun |
|---|---|
| `namespace` | namespaces, and the process that they live and end with |
| `process`, `enter` | a process in them, and the way into them |
| `network` | the hosts and the bridge between them |
| `cluster` | hosts with a worker each, and clients that run the commands of a test |
| `requirement` | tests that need namespaces |
| `host` | one host, and operations on its network |
"""

from tools.netns.host import Host
from tools.netns.namespace import Namespace, unavailable
from tools.netns.network import Network
from tools.netns.process import Process

__all__ = ["Host", "Namespace", "Network", "Process", "unavailable"]
