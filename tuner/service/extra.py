"""What this package adds to the core: answers, jobs and pages over HTTP."""

from tuner.extras import Command, Extra

EXTRA = Extra(
    commands={
        "serve": Command("tuner.service.command:serve", "Serve answers, jobs and pages over HTTP.", "Service"),
        "token": Command(
            "tuner.service.access_command:token", "Make, list and revoke tokens of the service.", "Service"
        ),
        "allow": Command(
            "tuner.service.access_command:allow", "Allow jobs to name a kernel file of this machine.", "Service"
        ),
    },
    provides={"client": "tuner.service.client:connect"},
)
