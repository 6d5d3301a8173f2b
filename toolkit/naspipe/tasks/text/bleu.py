"""BLEU of a module's own translations: greedy decoding, and the sums from which corpus BLEU is computed.

Shapes: N sentences, S source tokens, T target tokens so far, V ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from naspipe.tasks.text.extra import import_extra
from naspipe.tasks.text.sequence import BEGIN, END, PAD, UNKNOWN

ORDERS = 4
"""The length of the longest n-grams in BLEU."""

_LENGTH, _REFERENCE = "bleu_length", "bleu_reference_length"


def decode_greedily(module: nn.Module, source: Tensor, max_length: int) -> list[list[int]]:
    """Translate token by token, always with the most likely token.

    Each token is a forward of the whole module on the sentences that have no end yet.

    Args:
        module: Called with (source (N, S), target so far (N, T)); returns logits (N, T, V).
        source: (N, S), padded.
        max_length: Tokens of a translation at most, including the end.

    Returns:
        The tokens of each sentence, without begin and end.
    """
    count = len(source)
    written = torch.full((count, max_length), PAD, dtype=torch.long, device=source.device)
    unfinished = torch.arange(count, device=source.device)
    so_far = torch.full((count, 1), BEGIN, dtype=torch.long, device=source.device)
    for place in range(max_length):
        logits = module((source[unfinished], so_far))[:, -1].float().clone()
        # These ids are not words.
        logits[:, [PAD, BEGIN, UNKNOWN]] = -torch.inf
        tokens = logits.argmax(dim=-1)
        written[unfinished, place] = tokens
        continues = tokens != END
        unfinished, so_far = unfinished[continues], torch.cat([so_far, tokens[:, None]], dim=1)[continues]
        if not len(unfinished):
            break
    return [[token for token in row if token not in (PAD, END)] for row in written.tolist()]


def count_matches(translations: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return the sums over sentences from which corpus BLEU is computed.

    Args:
        translations: The translations of a module.
        references: The correct translation of each.

    Raises:
        TaskError: ``sacrebleu`` is missing.
    """
    bleu = import_extra("sacrebleu", "BLEU").BLEU(force=True)
    score = bleu.corpus_score(list(translations), [list(references)])
    sums = {_LENGTH: float(score.sys_len), _REFERENCE: float(score.ref_len)}
    for order in range(ORDERS):
        sums[f"bleu_matches_{order + 1}"] = float(score.counts[order])
        sums[f"bleu_total_{order + 1}"] = float(score.totals[order])
    return sums


def corpus_bleu(sums: Mapping[str, float]) -> float | None:
    """Return BLEU in [0, 100] from the sums over all sentences, by sacrebleu; None if there are no sentences.

    The settings are sacrebleu's defaults: tokens as in mteval-v13a, exponential smoothing (Post, "A Call for Clarity in
    Reporting BLEU Scores", 2018).
    """
    if not sums.get(_REFERENCE):
        return None
    bleu = import_extra("sacrebleu", "BLEU").BLEU
    score = bleu.compute_bleu(
        correct=[int(sums[f"bleu_matches_{order + 1}"]) for order in range(ORDERS)],
        total=[int(sums[f"bleu_total_{order + 1}"]) for order in range(ORDERS)],
        sys_len=int(sums[_LENGTH]),
        ref_len=int(sums[_REFERENCE]),
        smooth_method="exp",
    )
    return float(score.score)
