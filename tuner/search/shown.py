"""Studies as Optuna's dashboard shows them: made of finished trials when somebody looks, and kept in memory."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping, Sequence

import optuna

from tuner.declare.space import Config, Parameter, Space, choice
from tuner.search.history import Observation
from tuner.search.sampler import finished_trial

#: Studies that are shown.
MOST_STUDIES = 50


class Shown:
    """Studies in Optuna's form.

    Attributes:
        storage: What the dashboard reads.
    """

    def __init__(self) -> None:
        """Shows none yet."""
        self.storage = optuna.storages.InMemoryStorage()
        self._lock = threading.Lock()

    def add(self, name: str, objectives: Sequence[str], trials: Sequence[Observation]) -> int:
        """Shows a study; made anew if there are more trials than were shown.

        Args:
            name: Its name.
            objectives: What it minimises.
            trials: All of its finished trials.

        Returns:
            The study's number in the storage.
        """
        with self._lock, warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            known = {each.study_name: each._study_id for each in self.storage.get_all_studies()}
            if name in known:
                if self.storage.get_n_trials(known[name]) == len(trials):
                    return known[name]
                self.storage.delete_study(known[name])
            elif len(known) >= MOST_STUDIES:
                self.storage.delete_study(min(known.values()))
            study = optuna.create_study(
                storage=self.storage, study_name=name, directions=["minimize"] * len(objectives)
            )
            study.set_metric_names(list(objectives))
            spaces = _spaces(trials)
            for each in trials:
                self.storage.create_new_trial(study._study_id, finished_trial(spaces, each, objectives))
            return study._study_id


def _spaces(trials: Sequence[Observation]) -> Mapping[str, Space]:
    """What was tried of each kernel: the values that a parameter took are its choices."""
    found: dict[str, list[Config]] = {}
    for each in trials:
        found.setdefault(each.kernel, []).append(each.config)
    return {kernel: Space.of(_parameters(configs), configs) for kernel, configs in found.items()}


def _parameters(configs: Sequence[Config]) -> list[Parameter]:
    values = {name: dict.fromkeys(config[name] for config in configs) for name in configs[0]}
    ordered = {name: sorted(some, key=lambda each: (str(type(each)), each)) for name, some in values.items()}
    return [choice(name, *some) for name, some in ordered.items()]
