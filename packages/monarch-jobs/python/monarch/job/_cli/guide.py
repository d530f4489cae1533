"""The end of `monarch --help`: how the verbs of jobs belong together, for whoever reads nothing else."""

from __future__ import annotations

TEXT = """\
Working with a job:
  monarch apply my_module.job      reserves hosts, waits until they answer
  monarch status; monarch logs     what the scheduler and the workers say
  monarch kill                     gives the hosts back

Job reuse: hosts are reserved once and used many times. `apply`, and
`job.state()` in a script, find the job of this directory again and change
nothing; edit, run again, and `kill` only at the end. Print before you submit
with `apply --plan`; try on one machine with `apply --as process`.

Commands on hosts go through `monarch exec`: one process on each host, several
with `--per-host procs=8`. Exit codes: the command's own, 2 usage, 3 no such
job, 4 job ended, 130 Ctrl-C. `--json` is there wherever a table is printed.
"""
