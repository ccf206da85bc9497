"""The service over HTTP: answers, records, jobs and pages; no logic of its own."""
