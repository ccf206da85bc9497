"""What this package adds to the core: ladders, few configs for many shapes, figures and comparisons."""

from tuner.extras import Command, Extra

EXTRA = Extra(
    commands={
        "ladder": Command("tuner.report.ladder:ladder", "Measure each kernel of an operation in order.", "Tune"),
        "distil": Command("tuner.report.distil:distil", "Find few configs for many shapes, and how to choose.", "Answer"),
        "show": Command("tuner.report.pages:show_command", "Show what a study saw, also as a page with figures.", "Look"),
        "compare": Command("tuner.report.comparing:compare", "Compare devices, drivers, versions, days or studies.", "Look"),
    },
    provides={"figures": "tuner.report.pages", "invariant": "tuner.report.invariant:run_invariant"},
)  # fmt: skip
