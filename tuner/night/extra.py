"""What this package adds to the core: nights, sentinels and their reports."""

from tuner.extras import Command, Extra

EXTRA = Extra(
    commands={
        "nightly": Command("tuner.night.command:nightly", "Tune the problems of a plan until a deadline.", "Tune"),
        "watch": Command("tuner.night.command:watch", "Time champions and library, and say what changed since.", "Watch"),
        "report": Command("tuner.night.command:report", "Make the report of an earlier night again.", "Watch"),
    },
    provides={"problems of a plan": "tuner.night.plan:listed_problems"},
)  # fmt: skip
