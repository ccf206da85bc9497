"""What was measured, as plain data, and the rules on it: records, objectives, error limits, verdicts."""
