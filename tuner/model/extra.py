"""What this package adds to the core: models of times, surveys, and what answers cost."""

from tuner.extras import Command, Extra

EXTRA = Extra(
    commands={
        "survey": Command("tuner.model.commands:survey", "Time many configs at many problems, for a model.", "Tune"),
        "lookup-quality": Command("tuner.model.quality:lookup_quality", "Measure what answers for unknown problems cost.", "Answer"),
        "model": Command("tuner.model.commands:model", "Fit a model to a survey, for shapes that nobody tuned.", "Answer"),
    },
    provides={"predictor": "tuner.model.provider:PREDICTOR"},
)  # fmt: skip
