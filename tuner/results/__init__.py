"""Measurements as plain data, and the rules for judging them: records, objectives, error limits, verdicts."""
