"""The import `from monarch_skypilot import SkyPilotJob` of programs written for 0.7."""

from monarch.job.skypilot import SkyPilotJob as SkyPilotJob
