"""`from monarch_skypilot import SkyPilotJob`, as programs written for 0.7 have it."""

from monarch.job.skypilot import SkyPilotJob as SkyPilotJob
