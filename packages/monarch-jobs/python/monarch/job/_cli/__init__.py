"""The verbs that monarch-jobs adds to the command `monarch`; an entry point of `monarch.cli` names each `click.Command`.

The modules of verbs import `monarch.job` and `monarch.actor` inside functions: `monarch --help` loads all of these modules, and would take
several times as long with the libraries of the verbs; `exec` has to fork before this process can be a client.
"""
