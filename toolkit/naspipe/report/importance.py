"""The importance of each decision for an objective, as Optuna estimates it from the trials."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from naspipe.report.canvas import ACCENT, new_figure
from naspipe.search.objective import Objective
from naspipe.search.trial import Trial, complete_trials
from naspipe.space import SearchSpace

MIN_TRIALS, TRIALS_A_DECISION = 20, 3
"""Complete trials that an estimate needs: a least number, and a number for each decision."""

MAX_CELLS = 500_000
"""Limit of complete trials times options of all decisions, for which an estimate takes about six seconds."""

MAX_BARS = 30
"""Decisions that are drawn, the most important ones."""


def importance_refusal(space: SearchSpace, trials: Sequence[Trial]) -> str:
    """Return why there is no estimate, as a sentence, or an empty text."""
    count, decisions = len(complete_trials(trials)), len(space.decisions)
    needed = max(MIN_TRIALS, TRIALS_A_DECISION * decisions)
    if count < needed:
        return (
            f"How much each decision matters is not estimated: {decisions} decisions need {needed} complete trials at "
            f"least, and there are {count}."
        )
    options = sum(len(decision.options) for decision in space.decisions)
    if count * options > MAX_CELLS:
        return (
            f"How much each decision matters is not estimated, to save time: {count:,} complete trials times "
            f"{options:,} options are more than {MAX_CELLS:,}."
        )
    return ""


def decision_importances(
    space: SearchSpace, trials: Sequence[Trial], objectives: Sequence[Objective]
) -> dict[str, dict[str, float]]:
    """Return for each objective the importance of each decision, the greatest first; they add up to 1.

    It is the mean decrease of impurity in a random forest that predicts the objective from the options (Louppe et
    al., "Understanding variable importances in forests of randomized trees", NeurIPS 2013). An objective with the
    same value in every trial, and a decision that exists in some trials only, are left out.

    Args:
        space: The space that was searched.
        trials: Enough of them, as ``importance_refusal`` says.
        objectives: The objectives of the search.
    """
    # These import scikit-learn and scipy, which takes two seconds.
    from optuna.importance import MeanDecreaseImpurityImportanceEvaluator, get_param_importances

    from naspipe.search.study import make_study, quiet_optuna

    complete = complete_trials(trials)
    study = make_study(complete, space, objectives)
    found: dict[str, dict[str, float]] = {}
    for place, objective in enumerate(objectives):
        if len({trial.metrics[objective.name] for trial in complete}) == 1:
            continue
        with quiet_optuna():
            importances = get_param_importances(
                study,
                evaluator=MeanDecreaseImpurityImportanceEvaluator(seed=0),
                target=lambda trial, place=place: trial.values[place],  # type: ignore[misc]  # bound now
            )
        found[objective.name] = {name: float(value) for name, value in importances.items()}
    return found


def importance_figure(importances: Mapping[str, float]) -> Any:
    """Return bars, the most important decision on top."""
    shown = list(importances.items())[:MAX_BARS]
    figure = new_figure(110 + 24 * len(shown), "importance", "decision")
    figure.add_bar(
        x=[value for _, value in shown],
        y=[html.escape(name) for name, _ in shown],
        orientation="h",
        marker={"color": ACCENT},
        text=[f"{value:.2f}" for _, value in shown],
        textposition="outside",
        cliponaxis=False,
        hovertemplate="%{y}: %{x:.4f}<extra></extra>",
    )
    figure.update_layout(margin={"t": 30}, bargap=0.3)
    figure.update_xaxes(rangemode="tozero", range=[0, 1.12 * max(value for _, value in shown)])
    figure.update_yaxes(type="category", showgrid=False, tickfont={"size": 12}, autorange="reversed")
    return figure
