"""Memory of GPUs of this host: handles that describe it, and the threads that copy from and to it."""
