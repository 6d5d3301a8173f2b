"""BLEU of what a module translates by itself: greedy decoding, and sums that corpus BLEU is computed from.

Shapes: N sentences, S source tokens, T target tokens so far, V ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from naspipe.tasks.text.extra import import_extra
from naspipe.tasks.text.sequence import BEGIN, END, PAD, UNKNOWN

ORDERS = 4
"""The longest n-grams that BLEU counts."""

_LENGTH, _REFERENCE = "bleu_length", "bleu_reference_length"


def decode_greedily(module: nn.Module, source: Tensor, max_length: int) -> list[list[int]]:
    """Translate by taking the most likely token, again and again.

    The module is a black box, so each token runs the whole of it again on the sentences that go on.

    Args:
        module: Called with (source (N, S), target so far (N, T)); returns logits (N, T, V).
        source: (N, S), padded.
        max_length: Tokens at most, the end included.

    Returns:
        For each sentence its tokens, without begin and end.
    """
    count = len(source)
    written = torch.full((count, max_length), PAD, dtype=torch.long, device=source.device)
    going = torch.arange(count, device=source.device)
    so_far = torch.full((count, 1), BEGIN, dtype=torch.long, device=source.device)
    for place in range(max_length):
        logits = module((source[going], so_far))[:, -1].float().clone()
        # Never an answer: they would only fill the place of a word.
        logits[:, [PAD, BEGIN, UNKNOWN]] = -torch.inf
        tokens = logits.argmax(dim=-1)
        written[going, place] = tokens
        goes_on = tokens != END
        going, so_far = going[goes_on], torch.cat([so_far, tokens[:, None]], dim=1)[goes_on]
        if not len(going):
            break
    return [[token for token in row if token not in (PAD, END)] for row in written.tolist()]


def count_matches(translations: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return the sums over sentences of which corpus BLEU is a function.

    Args:
        translations: What a module wrote.
        references: What it should have written, one for each.

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
    """Return BLEU in [0, 100] of the sums of all sentences, by sacrebleu's own formula; None if there are none.

    The default of sacrebleu: tokens by the rules of mteval-v13a, exponential smoothing (Post, A call for clarity in
    reporting BLEU scores, 2018).
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
