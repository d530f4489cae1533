"""Memory of processes of other hosts, read and written by RDMA devices: one noun a file.

| file | noun |
|---|---|
| `devices` | devices, ports, addresses and distances, from sysfs |
| `provider` | what is asked of a library that drives devices |
| `pyverbs_provider`, `pyverbs_library` | the provider on pyverbs; the names of pyverbs, which differ from version to version |
| `connect_record` | what two processes send each other before they can transfer |
| `endpoint_rc`, `endpoint_srd` | queue pairs of connected devices; of EFA |
| `send_queue` | which requests of a queue pair are under way: decisions only |
| `memory` | what is registered: of the host, or of a GPU |
| `registration` | local memory that devices know, within a budget |
| `poller` | the thread of a device that takes completions |
| `connection`, `status` | all rails to one process, and the transfers on them; how requests end |
| `acceptor` | the other end of connections, and memory that others may reach |
| `readiness` | what is in the way of using a device |
| `usable` | whether this process uses devices, and which |
| `rails` | those that it has open, and local memory that they know |
| `question` | what processes ask each other, as bytes |
| `owner` | the side that is asked: queues, keys, and their end |
| `peer` | the side that asks: a process, the connection to it, keys of its buffers |
| `service` | the thread for all that is no transfer |
| `fabric` | all of it, for this process |

An owner registers what it shares when it is asked for the key (`Export`), and answers offers of queues (`Acceptor.answer`); it takes no
part in transfers. A reader has a `Poller` per rail and a `Connection` per process, which asks for queues by its `Dial`, and submits
`Piece`s of memory that `Registrations` knows. The bytes that an incomplete `Transfer` has `left()` go by another path
(`monarch.rdma.paths.verbs`); its `attempts`, and `troubles` of the connection, are in the text of an error. The agents report the death of
a peer: `Connection.close` then ends what is under way at once, and `Acceptor.forget` its reach.

Slices and rails are chosen by `slices`, which knows nothing of devices. A *rail* is a port of a device. Verbs are clear text on the fabric:
who may read a fabric may read what is transferred.
"""
