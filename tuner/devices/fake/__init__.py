"""A device for tests: its times and faults stand in a file."""
