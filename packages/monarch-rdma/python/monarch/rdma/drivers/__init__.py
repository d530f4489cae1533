"""What drives GPUs of this machine."""
