"""How chunks travel from the client to the hosts: pulled, down a tree of hosts."""
