"""Jobs: the life cycle of every job, and the common part of jobs whose machines come from a launcher.

A submission takes four steps: `LauncherJob._create` makes the secret, `Launcher.submit` sends the plan to the scheduler,
`Launcher.addresses` returns the addresses where workers listen, and the join (`join.py`) attaches them. The package needs the state files
and credentials of `_files`. A back end never connects to a host: only the join does.
"""
