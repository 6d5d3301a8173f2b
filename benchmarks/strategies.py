"""Compare strategies on the table of NAS-Bench-201: python benchmarks/strategies.py [--html FILE] [--csv FILE].

About two minutes on one core. Every strategy evaluates 300 architectures for each of 20 seeds; regret is how far the
best accuracy so far lies below the best of the table, in percentage points. Differences from random search are
paired by seed, with a bootstrap 95 % interval of their mean. What random search is expected to reach is computed
exactly, the greatest of n cells drawn without replacement, and compared with more seeds of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from scipy.special import gammaln

from naspipe import Strategy
from naspipe.config.schema import BudgetConfig
from naspipe.files import write_csv, write_text
from naspipe.search.loop import one_by_one, run_search
from naspipe.search.objective import Objective
from naspipe_spaces.nasbench201 import NASBench201
from naspipe_spaces.nasbench201_table import read_table, true_accuracy
from naspipe_strategies.evolution import EvolutionStrategy
from naspipe_strategies.local_search import LocalSearchStrategy
from naspipe_strategies.optuna_sampler import OptunaStrategy
from naspipe_strategies.random_search import RandomStrategy
from naspipe_strategies.regularized_evolution import RegularizedEvolutionStrategy

EVALUATIONS = 300
SEEDS = 20
MORE_SEEDS = 200
"""Seeds of random search, besides those above, that are compared with what it is expected to reach."""
RESAMPLES = 10_000
POINTS = (25, 50, 100, 150, 200, 300)

STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "random": RandomStrategy,
    "evolution": lambda: EvolutionStrategy(population=20),
    "regularized_evolution": lambda: RegularizedEvolutionStrategy(population=30, sample=10),
    "local_search": LocalSearchStrategy,
    "optuna TPESampler": lambda: OptunaStrategy("TPESampler"),
}


def regrets(name: str, seed: int) -> np.ndarray:
    """Return the regret after each evaluation of one search."""
    space = NASBench201()
    strategy = STRATEGIES[name]()
    strategy.start(space, ["maximize"], seed)
    objectives = [Objective("accuracy", "maximize")]
    result = run_search(
        space,
        strategy,
        objectives,
        BudgetConfig(trials=EVALUATIONS),
        one_by_one(lambda a: {"accuracy": true_accuracy(a)}),
        lambda trial: None,
    )
    values = np.array([trial.metrics["accuracy"] for trial in result.trials])
    return max(read_table().values()) - np.maximum.accumulate(values)


def expected_regret(draws: int) -> float:
    """Return the mean regret of the best of some cells drawn without replacement."""
    values = np.sort(np.array(list(read_table().values())))
    total = len(values)
    places = np.arange(draws, total + 1)
    # P(the greatest has place k) = C(k - 1, n - 1) / C(N, n).
    log_chance = (
        gammaln(places) - gammaln(draws) - gammaln(places - draws + 1)
        - (gammaln(total + 1) - gammaln(draws + 1) - gammaln(total - draws + 1))
    )  # fmt: skip
    return float(values[-1] - np.sum(np.exp(log_chance) * values[places - 1]))


def interval(differences: np.ndarray) -> tuple[float, float]:
    """Return the bootstrap 95 % interval of a mean."""
    generator = np.random.default_rng(0)
    means = generator.choice(differences, (RESAMPLES, len(differences))).mean(axis=1)
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def figure(curves: dict[str, np.ndarray], expected: Sequence[float]) -> go.Figure:
    """Return mean regret against evaluations."""
    evaluations = list(range(1, EVALUATIONS + 1))
    traces = [go.Scatter(x=evaluations, y=values.mean(axis=0), name=name) for name, values in curves.items()]
    exact = go.Scatter(x=list(POINTS), y=expected, name="random, exact expectation", mode="markers")
    return go.Figure(
        [*traces, exact],
        {
            "title": f"Mean regret over {SEEDS} seeds on the table of NAS-Bench-201",
            "xaxis": {"title": "evaluations"},
            "yaxis": {"title": "regret, percentage points", "type": "log"},
            "template": "plotly_white",
        },
    )


def main() -> None:
    """Print the table and write the files asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--html", type=Path)
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    curves = {name: np.array([regrets(name, seed) for seed in range(SEEDS)]) for name in STRATEGIES}
    expected = [expected_regret(count) for count in POINTS]
    print(f"{'mean regret after':<24}{''.join(f'{count:>8}' for count in POINTS)}   minus random at {EVALUATIONS}")
    print(f"{'random, exact':<24}{''.join(f'{value:8.3f}' for value in expected)}")
    for name, values in curves.items():
        cells = "".join(f"{values[:, count - 1].mean():8.3f}" for count in POINTS)
        low, high = interval(values[:, -1] - curves["random"][:, -1])
        print(f"{name:<24}{cells}   {low:.3f} to {high:.3f}")
    more = np.array([regrets("random", SEEDS + seed)[-1] for seed in range(MORE_SEEDS)])
    error = more.std(ddof=1) / np.sqrt(MORE_SEEDS)
    print(f"random, {MORE_SEEDS} other seeds: {more.mean():.3f} +- {error:.3f}; exact {expected[-1]:.3f}")
    if arguments.csv:
        rows = [
            {"strategy": name, "seed": seed, "evaluations": count, "regret": values[seed, count - 1]}
            for name, values in curves.items()
            for seed in range(SEEDS)
            for count in range(1, EVALUATIONS + 1)
        ]
        write_csv(arguments.csv, ("strategy", "seed", "evaluations", "regret"), rows)
    if arguments.html:
        write_text(arguments.html, figure(curves, expected).to_html())


if __name__ == "__main__":
    main()
