"""The drivers of the GPUs of this machine: CUDA, HIP and HSA, each loaded on first use."""
