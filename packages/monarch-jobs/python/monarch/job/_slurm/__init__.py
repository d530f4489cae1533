"""The parts of `monarch.job.slurm`: hostlist, script, states, sharing (pure), arguments, directory, launcher."""
