"""The operator: makes the Service and the StatefulSet of each MonarchMesh, and reports in its status how many pods are ready.

`python -m monarch.job.kubernetes.operator` runs it; `monarch k8s install --operator` puts it into a cluster.
"""
