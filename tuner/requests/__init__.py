"""Requests and their JSON, the same for command line, service and Python: answers, tuning, records, jobs."""
