"""Features of jobs: `remote_mount` and `gather_mount`, and the services that the keeper runs for them."""
