"""Diagnosis of a job: what is known at one moment, detectors over that, and causes apart from their consequences."""
