# monarch-operator: the operator of MonarchMeshes, which needs nothing but the wheels of monarch-core and monarch-jobs. amd64 and arm64.
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE}

RUN --mount=type=bind,source=dist,target=/wheels \
    python -m pip install --no-cache-dir --root-user-action=ignore --find-links /wheels 'monarch-jobs[kubernetes]'

# The file system is read-only in the cluster.
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
EXPOSE 8081
ENTRYPOINT ["python", "-m", "monarch.job.kubernetes.operator"]
CMD ["--leader-elect"]
