"""All that a database keeps for good."""

from __future__ import annotations

from tuner.results.crowns import Crown
from tuner.results.record import Champion, Record, Retraction
from tuner.results.survey import SurveyPart

Kept = Record | Champion | Retraction | SurveyPart | Crown
