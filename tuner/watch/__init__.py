"""Watching for regressions: sentinels, what changed and why, alerts, and the report of a night."""
