"""Recorded spaces, and searches replayed on them without a device."""
