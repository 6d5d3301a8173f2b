"""Which of Optuna's estimates of importance orders decisions as they truly matter, on made-up scores with noise.

The score of an architecture is a sum of one number for each decision's option, and noise as large as the mean decision.
How much a decision matters is the variance of its numbers. Prints, for each estimate, Kendall's tau with that order and
the seconds that it takes, as means over the seeds.
"""

from __future__ import annotations

import argparse
import statistics
import time

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.importance import (
    BaseImportanceEvaluator,
    FanovaImportanceEvaluator,
    MeanDecreaseImpurityImportanceEvaluator,
    PedAnovaImportanceEvaluator,
    get_param_importances,
)
from scipy.stats import kendalltau

from naspipe import keyed_random
from naspipe.search.study import quiet_optuna

EVALUATORS: dict[str, BaseImportanceEvaluator] = {
    "PED-ANOVA": PedAnovaImportanceEvaluator(),
    "PED-ANOVA, best quarter": PedAnovaImportanceEvaluator(target_quantile=0.25),
    "fANOVA, 16 trees": FanovaImportanceEvaluator(seed=0, n_trees=16),
    "mean decrease of impurity": MeanDecreaseImpurityImportanceEvaluator(seed=0),
}


def make(decisions: int, options: int, trials: int, seed: int) -> tuple[optuna.Study, list[float]]:
    """Return a study to minimise of random trials, and how much each decision truly matters."""
    generator = keyed_random(seed, "importance", decisions, options, trials)
    numbers = [[(d + 1) * generator.gauss(0, 1) for _ in range(options)] for d in range(decisions)]
    truth = [statistics.pvariance(row) for row in numbers]
    distributions = {f"decision{d}": CategoricalDistribution(list(range(options))) for d in range(decisions)}
    study = optuna.create_study()
    for _ in range(trials):
        chosen = [generator.randrange(options) for _ in range(decisions)]
        score = sum(row[option] for row, option in zip(numbers, chosen, strict=True))
        score += generator.gauss(0, statistics.mean(truth) ** 0.5)
        params = dict(zip(distributions, chosen, strict=True))
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=score))
    return study, truth


def main() -> None:
    """Print a table for each size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="6x5x64,6x5x300,20x6x100", help="decisions x options x trials")
    parser.add_argument("--seeds", type=int, default=8)
    arguments = parser.parse_args()
    with quiet_optuna():
        for size in arguments.sizes.split(","):
            decisions, options, trials = map(int, size.split("x"))
            print(f"{decisions} decisions of {options} options, {trials} trials, {arguments.seeds} seeds")
            made = [make(decisions, options, trials, seed) for seed in range(arguments.seeds)]
            for name, evaluator in EVALUATORS.items():
                start = time.perf_counter()
                found = [get_param_importances(study, evaluator=evaluator) for study, _ in made]
                seconds = (time.perf_counter() - start) / len(made)
                taus = [
                    kendalltau([importances[f"decision{d}"] for d in range(decisions)], truth)[0]
                    for importances, (_, truth) in zip(found, made, strict=True)
                ]
                print(f"  {name:<26} tau {statistics.mean(taus):.2f}  {seconds:.2f} s")


if __name__ == "__main__":
    main()
