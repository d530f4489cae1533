"""The verbs that monarch-jobs adds to the command `monarch`: a file each, whose `command` an entry point of `monarch.cli` names."""
