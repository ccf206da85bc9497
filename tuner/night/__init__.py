"""Nights: problems of a plan share the time until a deadline; sentinels tell what became slower, and why."""
