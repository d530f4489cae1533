# monarch:VERSION-rocm: the Python and PyTorch of an image with ROCm, a user without rights, FUSE, RDMA.
ARG BASE=rocm/pytorch:rocm7.0_ubuntu24.04_py3.12_pytorch_release_2.7.1
FROM ${BASE}

USER root
RUN apt-get update \
    && apt-get install --yes --no-install-recommends fuse3 ibverbs-providers libibverbs1 librdmacm1 \
    && rm -rf /var/lib/apt/lists/* \
    && sed -i 's/^#user_allow_other/user_allow_other/' /etc/fuse.conf

# The wheels of this release; PyTorch is the base's.
RUN --mount=type=bind,source=dist,target=/wheels \
    python -m pip install --no-cache-dir --root-user-action=ignore --find-links /wheels 'monarch-suite[all]' 'monarch-jobs[kubernetes]'

# Some bases have a user of this number already.
RUN getent passwd 1000 >/dev/null || { groupadd --gid 1000 monarch && useradd --uid 1000 --gid 1000 --create-home monarch; }
USER 1000:1000
WORKDIR /tmp
ENV PYTHONUNBUFFERED=1
EXPOSE 26600
CMD ["monarch", "worker", "--listen", "tcp://*:26600"]
