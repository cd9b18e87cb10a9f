"""Finds what is wrong or unsafe around an outbox, and says how to fix it."""

from relay.doctor.examination import examine
from relay.doctor.finding import SEVERITIES, Finding, Severity

__all__ = ["SEVERITIES", "Finding", "Severity", "examine"]
