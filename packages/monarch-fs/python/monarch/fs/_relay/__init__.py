"""The transport of chunks from the client to the hosts: each host pulls, down a tree of hosts.

A read of a chunk that the machine lacks goes from the server of the mount to the daemon, and from there to the service of a host that uses
the mount. The `Exchange` of this service asks the upstream hosts, and at last the `Origin` of the client. A chunk is verified by its
digest before it enters the store. A host asks only hosts of lower rank, so no two hosts wait for each other.
"""
