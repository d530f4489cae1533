"""Secrets in texts that leave the job: dumps, captures, records of failures. One set of rules for all."""

from monarch._core.observe.masking import MASK, Masking, is_secret, is_secret_variable

__all__ = ["MASK", "Masking", "is_secret", "is_secret_variable"]
