"""The connection with the kernel: mounting, the loop of requests, the interposer in front of libfuse."""
