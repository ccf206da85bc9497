"""What this package adds to the core: answers, jobs and pages over HTTP."""

from tuner.extras import Command, Extra

EXTRA = Extra(
    commands={
        "serve": Command("tuner.service.commands:serve", "Serve answers, jobs and pages over HTTP.", "Service"),
        "token": Command("tuner.service.commands:token", "Make, list and revoke tokens of the service.", "Service"),
        "allow": Command("tuner.service.commands:allow", "Allow jobs to name a kernel file of this machine.", "Service"),
    },
    provides={"client": "tuner.service.client:connect"},
)  # fmt: skip
