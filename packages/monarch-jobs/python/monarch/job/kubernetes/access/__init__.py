"""Everything that crosses the network to an API server: kubeconfigs, requests, watches, forwarded ports."""
