# monarch: CPU, a user without rights, FUSE. amd64 and arm64.
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE}

# fusermount3 mounts for users that may not; /bin/sh runs the worker of a pod.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends fuse3 \
    && rm -rf /var/lib/apt/lists/* \
    && sed -i 's/^#user_allow_other/user_allow_other/' /etc/fuse.conf

# The wheels of this release but monarch-tensor, which brings PyTorch; their dependencies come from the configured index.
RUN --mount=type=bind,source=dist,target=/wheels \
    python -m pip install --no-cache-dir --root-user-action=ignore --find-links /wheels \
    'monarch-suite[fs,jobs,rdma,spmd,telemetry]' 'monarch-jobs[kubernetes]'

RUN groupadd --gid 1000 monarch && useradd --uid 1000 --gid 1000 --create-home monarch
USER 1000:1000
WORKDIR /tmp
ENV PYTHONUNBUFFERED=1
EXPOSE 26600
CMD ["monarch", "worker", "--listen", "tcp://*:26600"]
