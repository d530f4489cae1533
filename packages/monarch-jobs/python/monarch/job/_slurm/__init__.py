"""The parts of `monarch.job.slurm`: hostlist, script, states (pure), commands, directory, sharing, launcher."""
