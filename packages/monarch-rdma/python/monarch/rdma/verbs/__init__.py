"""Memory of processes of other hosts, read and written by RDMA devices: one noun a file.

| file | noun |
|---|---|
| `devices` | devices, ports, addresses and distances, from sysfs |
| `provider` | what is asked of a library that drives devices |
| `pyverbs_provider`, `pyverbs_library` | the provider on pyverbs; the names of pyverbs, which differ from version to version |
| `connect_record` | what two processes tell each other before they can transfer |
| `endpoint_rc`, `endpoint_srd` | queue pairs of connected devices; of EFA |
| `send_queue` | which requests of a queue pair are under way: decisions only |
| `registration` | local memory that devices know, within a budget |
| `poller` | the thread of a device that takes completions |
| `connection` | all rails to one process, and the transfers on them |

Slices and rails are chosen by `monarch.rdma._slices`, which knows nothing of devices. A *rail* is a port of a device. Verbs are clear text
on the fabric: who may read a fabric may read what is transferred.
"""
