"""KubernetesJob: hosts from a Kubernetes cluster."""
