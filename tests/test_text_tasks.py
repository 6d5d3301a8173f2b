"""Translation and language models: tokens, splits, loss, BLEU, the cache, and runs from end to end."""

from __future__ import annotations

import copy
import hashlib
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch
from forked import call_in_forks
from hypothesis import given, settings
from hypothesis import strategies as st
from text_spaces import CONFIG
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import naspipe
from naspipe import Batch, NaspipeWarning, Run, Splits, TaskError
from naspipe.tasks.cache import cache_folder, cached
from naspipe.tasks.text import sources, sword
from naspipe.tasks.text.bleu import corpus_bleu, count_matches, decode_greedily
from naspipe.tasks.text.language_model import LanguageModel
from naspipe.tasks.text.sequence import BEGIN, END, PAD, UNKNOWN, SequenceTask
from naspipe.tasks.text.tokens import Characters, Subwords, learn_subwords
from naspipe.tasks.text.translation import Translation

WORDS = {
    "the": "el", "dog": "perro", "cat": "gato", "sees": "ve", "bites": "muerde", "big": "grande",
    "small": "pequeño", "man,": "hombre,", "house.": "casa.", "a": "un", "never": "nunca", "“river”": "«río»",
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NASPIPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two files of 120 lines, the second a translation word by word."""
    folder = tmp_path_factory.mktemp("texts")
    generator = torch.Generator().manual_seed(0)
    english = list(WORDS)
    rows = [
        [english[i] for i in torch.randint(len(english), (2 + n % 7,), generator=generator).tolist()]
        for n in range(120)
    ]
    (folder / "source.txt").write_text("\n".join(" ".join(row) for row in rows) + "\n")
    (folder / "target.txt").write_text("\n".join(" ".join(WORDS[word] for word in row) for row in rows) + "\n")
    return {"source": str(folder / "source.txt"), "target": str(folder / "target.txt")}


def translation(files: dict[str, str], **more: Any) -> Translation:
    return Translation(**{**files, "vocabulary": 60, "validation": 0.2, "test": 0.2, **more})


def whole(split: Any) -> Batch:
    return split.batch(range(len(split)), 0)


# --- Translation


def test_a_batch_of_pairs_is_padded_to_its_longest_and_shifted_by_one(files: dict[str, str]) -> None:
    task = translation(files)
    splits = task.load(0)
    assert splits.sizes() == {"train": 72, "validation": 24, "test": 24}
    lines = Path(files["source"]).read_text().splitlines(), Path(files["target"]).read_text().splitlines()
    pairs = dict(zip(*lines, strict=True))
    for split in (splits.train, splits.validation, splits.test):
        batch = whole(split)
        source, so_far = batch.inputs
        assert {tensor.dtype for tensor in (source, so_far, batch.targets)} == {torch.int64}
        assert so_far.shape == batch.targets.shape
        for row, before, after in zip(source.tolist(), so_far.tolist(), batch.targets.tolist(), strict=True):
            assert before[0] == BEGIN
            count = after.index(END)
            assert before[1 : count + 1] == after[:count]
            assert set(before[count + 1 :]) | set(after[count + 1 :]) <= {PAD}
            assert row[row.index(END) + 1 :] == [PAD] * (len(row) - row.index(END) - 1)
            assert pairs[split.subwords.decode(row)] == split.subwords.decode(after)
        assert max(row.index(END) for row in source.tolist()) == source.shape[1] - 1
    few = splits.train.batch([3, 1], 0)
    assert torch.equal(few.targets[0], whole(splits.train).targets[3][: few.targets.shape[1]])


def test_no_sentence_is_longer_than_max_length_and_all_end(files: dict[str, str]) -> None:
    batch = whole(translation(files, max_length=5).load(0).train)
    for tensor in (*batch.inputs, batch.targets):
        assert tensor.shape[1] == 5
    assert ((batch.targets == END).sum(1) == 1).all()
    assert ((batch.inputs[0] == END).sum(1) == 1).all()


def test_ids_stay_below_the_vocabulary_and_special_ones_are_where_they_belong(files: dict[str, str]) -> None:
    for vocabulary in (8, 30, 60, 4000):
        task = translation(files, vocabulary=vocabulary)
        split = task.load(0).train
        batch = whole(split)
        assert split.subwords.size <= vocabulary
        assert int(max(batch.targets.max(), batch.inputs[0].max())) < vocabulary
        assert int(batch.targets.max()) >= 4
    assert split.subwords.size < 4000


def test_only_training_text_shapes_the_vocabulary() -> None:
    subwords = Subwords(learn_subwords(["abc abd abe"] * 3, 40))
    assert subwords.encode(["abz"])[0][-1] == UNKNOWN
    task, seen = Translation(vocabulary=40), []

    def spy(texts: Any, vocabulary: int) -> str:
        seen.extend(texts)
        raise InterruptedError

    pairs = [(f"s{n}", f"t{n}") for n in range(10)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("naspipe.tasks.text.translation.learn_subwords", spy)
        with pytest.raises(InterruptedError):
            task._prepare(pairs, [1, 4], cache_folder())
    assert seen == ["s1", "t1", "s4", "t4"]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text("ab,.—ñ «", min_size=1, max_size=20), min_size=1, max_size=5), st.integers(8, 40))
def test_subwords_give_a_text_back_and_never_more_than_the_vocabulary(texts: list[str], vocabulary: int) -> None:
    texts = [" ".join(text.split()) for text in texts if text.split()] or ["a"]
    subwords = Subwords(learn_subwords(texts, vocabulary))
    assert subwords.size <= vocabulary
    if vocabulary > 15:  # Enough for every character.
        assert [subwords.decode(ids) for ids in subwords.encode(texts)] == texts


def test_a_text_that_spells_a_special_token_is_no_special_token() -> None:
    subwords = Subwords(learn_subwords(["<end> of <pad>", "⁇ and <begin>"], 200))
    ids = subwords.encode(["x<end>y"])[0]
    assert END not in ids
    assert subwords.decode([BEGIN, *subwords.encode(["the <end> of <pad>"])[0], END, 7, PAD]).endswith("nd> of <pad>")
    assert subwords.decode([5000]) == ""


def test_characters_are_cut_off_by_frequency_and_then_by_code_point() -> None:
    characters = Characters("zzzyyyb a", vocabulary=8)
    assert characters.encode("zyab ") == [7, 6, 5, UNKNOWN, 4]


def digest_of_training(files: dict[str, str], threads: int) -> str:
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    batch = whole(translation(files).load(3).train)
    return hashlib.sha256(b"".join(x.numpy().tobytes() for x in (*batch.inputs, batch.targets))).hexdigest()


def test_processes_that_start_at_once_prepare_the_same(
    files: dict[str, str], cache: Path, forks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = call_in_forks(digest_of_training, (files, 1), (files, 4))
    kept = {path.name: path.read_bytes() for path in cache.iterdir()}
    assert len(kept) == 1
    monkeypatch.setenv("RAYON_NUM_THREADS", "2")
    assert found == [digest_of_training(files, 2)] * 2
    again = cache.with_name("another")
    translation(files, cache=str(again)).load(3)
    assert {path.name: path.read_bytes() for path in again.iterdir()} == kept


def test_the_cache_changes_nothing_and_another_seed_splits_anew(files: dict[str, str], cache: Path) -> None:
    first, second = (whole(translation(files).load(0).validation) for _ in range(2))
    assert torch.equal(first.targets, second.targets)
    assert len(list(cache.iterdir())) == 1
    other = whole(translation(files).load(1).validation)
    assert first.targets.shape != other.targets.shape or not torch.equal(first.targets, other.targets)


# --- Loss and metrics


class Plain(SequenceTask):
    def load(self, seed: int) -> Splits:
        raise TaskError("it has no data")


def test_loss_weight_and_perplexity_count_every_token_but_padding() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(3, 5, 9, generator=generator)
    targets = torch.tensor([[4, 5, 2, 0, 0], [8, 2, 0, 0, 0], [7, 7, 7, 7, 2]])
    task = Plain(vocabulary=9, label_smoothing=0.2)
    assert task.weight(targets) == 10
    logs = outputs.log_softmax(-1)
    there = targets != PAD
    plain = -logs.gather(2, targets[..., None])[..., 0][there].sum()
    smooth = 0.8 * plain - 0.2 * logs.mean(-1)[there].sum()
    # Other orders of summation.
    torch.testing.assert_close(task.loss(outputs, targets), smooth)
    sums = task.measure(outputs, targets)
    assert sums["correct"] == float(((outputs.argmax(-1) == targets) & there).sum())
    metrics = task.metrics({**sums, "loss": float(smooth), "weight": 10.0})
    assert metrics["perplexity"] == pytest.approx(math.exp(float(plain) / 10))
    assert set(metrics) == set(task.directions)
    assert task.metrics({"entropy": 1e9, "correct": 0.0, "loss": 1.0, "weight": 1.0})["perplexity"] == math.inf
    # What is in the place of padding has no effect.
    other = torch.where(there[..., None], outputs, torch.tensor(1000.0))
    assert torch.equal(task.loss(other, targets), task.loss(outputs, targets))
    assert task.measure(other, targets) == sums


def test_a_space_of_a_smaller_vocabulary_is_named(files: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"(?s)at least 9 ids, but are \(3, 5, 8\).*the same vocabulary"):
        Plain(vocabulary=9).loss(torch.zeros(3, 5, 8), torch.ones(3, 5, dtype=torch.long))
    with pytest.raises(TaskError, match="but are tuple"):
        Plain(vocabulary=9).measure((1, 2), torch.ones(3, 5, dtype=torch.long))
    config = {**CONFIG, "space": {"name": "text_spaces:TokenSpace", "vocabulary": 40}, "task": task_of(files)}
    with pytest.raises(naspipe.InputError):
        Run.create(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- BLEU

SENTENCES = st.lists(st.sampled_from(["the", "dog", "sees", "a", "cat", ",", "nunca.", "río"]), max_size=12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(SENTENCES, SENTENCES.filter(len)), min_size=1, max_size=8), st.integers(1, 4))
def test_bleu_of_batches_equals_sacrebleus_of_the_corpus(pairs: list[tuple[list[str], list[str]]], size: int) -> None:
    written, right = ([" ".join(words) for words in side] for side in zip(*pairs, strict=True))
    totals: dict[str, float] = {}
    for start in range(0, len(pairs), size):
        for name, value in count_matches(written[start : start + size], right[start : start + size]).items():
            totals[name] = totals.get(name, 0.0) + value
    assert corpus_bleu(totals) == sacrebleu.corpus_bleu(written, [right]).score


class Echo(nn.Module):
    """Writes the source's tokens one by one, and counts the sentences it is given."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.given: list[int] = []

    def forward(self, x: tuple[Tensor, Tensor]) -> Tensor:
        source, so_far = x
        self.given.append(len(source))
        padded = F.pad(source, (0, so_far.shape[1]))[:, : so_far.shape[1]]
        # Padding and unknown tokens are likelier still, and yet never written.
        logits = F.one_hot(padded, self.vocabulary).float()
        logits[..., [PAD, BEGIN, UNKNOWN]] = 2.0
        return logits


def test_greedy_decoding_stops_each_sentence_at_its_end_and_all_at_the_bound() -> None:
    source = torch.tensor([[5, 6, END, 0], [7, END, 0, 0], [8, 8, 8, 8]])
    module = Echo(10)
    assert decode_greedily(module, source, 20) == [[5, 6], [7], [8, 8, 8, 8]] or module.given[:4] == [3, 3, 2, 1]
    module = Echo(10)
    assert decode_greedily(module, source, 3) == [[5, 6], [7], [8, 8, 8]]
    assert module.given == [3, 3, 2]


def test_bleu_is_of_what_the_module_writes_by_itself(files: dict[str, str]) -> None:
    same = {"source": files["target"], "target": files["target"]}
    task = translation(same, bleu_sentences=10)
    split = task.load(0).validation
    echo = Echo(60)
    assert bleu_of(task, echo, split, 4) == pytest.approx(100)
    # Ten sentences in batches of four: of the third, two.
    assert {count for count in echo.given if count > 2} == {4, 3}
    assert bleu_of(task, echo, split, 24) == bleu_of(task, echo, split, 1)
    # What is cut off is missing: the whole text is what it is compared with.
    short = translation(same, bleu_sentences=10, max_length=9)
    assert 0 < bleu_of(short, echo, short.load(0).validation, 4) < 90


def bleu_of(task: Translation, module: nn.Module, split: Any, size: int) -> float | None:
    totals: dict[str, float] = {}
    for start in range(0, len(split), size):
        batch = split.batch(range(start, min(start + size, len(split))), 0)
        sums = task.measure_module(module, batch, split, start)
        assert bool(sums) == (start < task.bleu_sentences)
        for name, value in sums.items():
            totals[name] = totals.get(name, 0.0) + value
    return corpus_bleu(totals)


def test_without_bleu_sentences_there_is_no_bleu_and_no_need_of_sacrebleu(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    task = translation(files, bleu_sentences=0)
    split = task.load(0).validation
    batch = whole(split)
    assert task.measure_module(Echo(60), batch, split, 0) == {}
    outputs = torch.zeros(*batch.targets.shape, 60)
    totals = {**task.measure(outputs, batch.targets), "loss": 1.0, "weight": 1.0}
    assert set(task.metrics(totals)) == set(task.directions) == {"accuracy", "loss", "perplexity"}
    with pytest.raises(TaskError, match=r"BLEU.*bleu_sentences=0.*pip install 'naspipe\[text\]'"):
        translation(files).load(0)


# --- Language models


@pytest.mark.parametrize("tokens", ["characters", "subwords"])
def test_windows_follow_each_other_and_targets_are_the_next_tokens(tokens: Any, tmp_path: Path) -> None:
    text = "\n".join(f"Line {n} of the text, number {n * n}." for n in range(300))
    (tmp_path / "text.txt").write_text(text)
    task = LanguageModel(str(tmp_path / "text.txt"), tokens, vocabulary=90, length=7, validation=0.2, test=0.1)
    splits = task.load(0)
    for split in (splits.train, splits.validation, splits.test):
        batch = whole(split)
        assert batch.inputs.shape == batch.targets.shape == (len(split), 7)
        assert batch.inputs.dtype == torch.int64
        flat, after = batch.inputs.flatten(), batch.targets.flatten()
        assert torch.equal(flat[1:], after[:-1])
        assert int(after.min()) >= 2
        assert int(after.max()) < 90
    if tokens == "characters":
        ids = Characters(text[: round(0.7 * len(text))], 90)
        joined = [whole(s).inputs.flatten().tolist() for s in (splits.train, splits.validation, splits.test)]
        cuts = [0, round(0.9 * len(text)) - round(0.2 * len(text)), round(0.9 * len(text))]
        for start, row in zip(cuts, joined, strict=True):
            assert row == ids.encode(text[start : start + len(row)])


def test_the_default_text_is_always_there() -> None:
    splits = LanguageModel().load(0)
    sizes = splits.sizes()
    assert sizes["train"] > 4000
    assert min(sizes.values()) > 500
    assert torch.equal(whole(LanguageModel().load(1).test).inputs, whole(splits.test).inputs)


# --- What is missing or malformed


def test_sources_that_do_not_fit_are_refused(files: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("one line")
    (tmp_path / "latin.txt").write_bytes("año".encode("latin-1"))
    (tmp_path / "empty.txt").write_text("\n" * 120)
    source = files["source"]
    for other, message in (
        (str(tmp_path / "short.txt"), r"line n of one file.*has 120 lines and .*short.txt has 1\."),
        (str(tmp_path / "none.txt"), r"none.txt cannot be read: No such file or directory\. A relative path"),
        (str(tmp_path / "latin.txt"), "latin.txt must be UTF-8"),
        (str(tmp_path / "empty.txt"), "must have pairs of texts, but have none"),
        (sources.SPANISH, "must both be SWORD modules .*or both be text files"),
    ):
        with pytest.raises(TaskError, match=message):
            Translation(source, other, vocabulary=60).load(0)
    with pytest.raises(TaskError, match="test has none: 3 tokens are less than one sample of length = 4 and"):
        LanguageModel(source, length=4, test=0.001).load(0)
    with pytest.raises(TaskError, match="train has none: 0 tokens"):
        LanguageModel(source, validation=0.6, test=0.6).load(0)


@pytest.mark.parametrize("made", [True, False])
def test_missing_modules_name_the_package_and_the_command(
    made: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWORD_PATH", str(tmp_path / "sword"))
    if made:
        (tmp_path / "sword" / "mods.d").mkdir(parents=True)
    config = {**CONFIG, "task": {"name": "translation"}}
    message = r"lacks engWEB2015eb, spaRV1909eb\. It has nothing\..*apt-get install sword-text-web sword-text-sparv\."
    with pytest.raises(TaskError, match=message):
        Run.create(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(TaskError, match="lacks latVulgate.*Debian has others: apt-get install sword-text-web"):
        LanguageModel("sword:latVulgate").load(0)


def test_missing_packages_name_the_extra(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.setitem(sys.modules, "pysword.modules", None)
    for task, package in (
        (translation(files), "tokenizers"),
        (LanguageModel(tokens="subwords"), "tokenizers"),
        (LanguageModel(sources.ENGLISH), "pysword"),
    ):
        with pytest.raises(TaskError, match=rf"needs the package '{package}'.*pip install 'naspipe\[text\]'"):
            task.load(0)
    assert len(LanguageModel().load(0).train)


# --- The cache


def test_the_cache_is_where_it_is_said_to_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder("/given") == Path("/given")
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("NASPIPE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "naspipe"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path.home() / ".cache" / "naspipe"


def test_a_cached_file_is_read_only_if_whole(tmp_path: Path) -> None:
    made: list[bytes] = []

    def make(data: bytes = b"some\ndata") -> bytes:
        made.append(data)
        return data

    assert cached(tmp_path, "x", ("a", "b"), make) == cached(tmp_path, "x", ("a", "b"), make) == b"some\ndata"
    assert len(made) == 1
    cached(tmp_path, "x", ("ab",), make)
    assert len(made) == 2
    one, two = sorted(tmp_path.iterdir())
    content = one.read_bytes()
    for damage in (content[:-1], content + b"\n", b"", content[:30], content.replace(b"data", b"dada"),
                   two.read_bytes()):  # fmt: skip
        one.write_bytes(damage)
        before = len(made)
        with pytest.warns(NaspipeWarning, match=f"{one.name} is damaged.*prepared again"):
            read = [cached(tmp_path, "x", key, make) for key in (("a", "b"), ("ab",))]
        assert read == [b"some\ndata"] * 2
        assert len(made) == before + 1
        assert one.read_bytes() == content


def test_a_cache_that_cannot_be_written_costs_a_warning_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.warns(NaspipeWarning) as caught:
        assert cached(tmp_path / "file" / "cache", "x", ("a",), lambda: b"data") == b"data"
    assert "cannot be written" in str(caught[-1].message)
    assert "NASPIPE_CACHE names another folder" in str(caught[-1].message)


# --- SWORD


def test_markup_is_left_out_and_words_stay_apart() -> None:
    note = '<note placement="foot"><reference>1:1 </reference>a <rdg>b</rdg></note>'
    assert sword.plain_text(f"<w>God</w>{note}<w>made</w> it{note}, ") == "God made it, ".strip()
    assert sword.plain_text('<div sID="1"/><l level="1">one</l><l>two;</l><lb/>“three”') == "one two; “three”"
    assert sword.plain_text('Amen. <chapter eID="x"/><div sID="2" type="glossary"/><item>word') == "Amen."
    assert sword.plain_text("<title>A <w>psalm</w></title>a &lt; b<title/>c") == "a < b c"


INSTALLED = all((sword.sword_folder() / "mods.d" / f"{name}.conf").exists() for name in ("engWEB2015eb", "spaRV1909eb"))


@pytest.mark.skipif(not INSTALLED, reason="needs the modules: apt-get install sword-text-web sword-text-sparv")
def test_the_real_modules_are_aligned_by_verse() -> None:
    found = sword.find_modules([])
    english, spanish = (dict(sword.verses_of(found, name, ["Ruth"])) for name in ("engWEB2015eb", "spaRV1909eb"))
    assert list(english) == list(spanish)
    assert len(english) == 85
    assert english["Ruth 4:22"] == "and Obed became the father of Jesse, and Jesse became the father of David."
    assert spanish["Ruth 4:22"] == "Y Obed engendró á Isaí, é Isaí engendró á David."
    assert not [text for text in (*english.values(), *spanish.values()) if set(text) & set("<>&\n")]


def test_verses_are_paired_by_reference(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    books = {
        "engWEB2015eb": {"a 1:1": "one", "a 1:2": "two", "b 1:1": "three"},
        "spaRV1909eb": {"b 1:1": "tres", "a 1:1": "uno"},
    }
    monkeypatch.setattr(sources, "find_modules", lambda names: None)
    monkeypatch.setattr(sources, "read_verses", lambda name, cache: books[name])
    assert sources.read_pairs(sources.ENGLISH, sources.SPANISH, tmp_path) == [("one", "uno"), ("three", "tres")]
    assert sources.read_text(sources.ENGLISH, tmp_path) == "one\ntwo\nthree\n"


# --- Runs


def task_of(files: dict[str, str], **more: Any) -> dict[str, Any]:
    return {"name": "translation", **files, "vocabulary": 60, "max_length": 20, "validation": 0.2, "test": 0.2, **more}


@pytest.fixture(scope="module")
def finished(files: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NASPIPE_CACHE", str(folder / "cache"))
        yield naspipe.run({**CONFIG, "task": task_of(files, bleu_sentences=20)}, folder / "one")


def test_a_translation_runs_from_end_to_end(finished: Run) -> None:
    metrics = finished.best_metrics()
    assert set(metrics["test"]) == {"accuracy", "loss", "perplexity", "bleu"}
    assert all(0 <= trial.metrics["bleu"] <= 100 for trial in finished.trials())
    assert metrics["test"]["perplexity"] < 40  # 60 ids; it has learnt something.
    # BLEU is that of the texts that the model writes.
    model, test = finished.best(), finished.splits.test
    written: list[list[int]] = []
    for places in (range(16), range(16, 20)):
        with torch.no_grad():
            written += decode_greedily(model, test.batch(places, 0).inputs[0], 20)
    texts, right = [test.subwords.decode(ids) for ids in written], test.references(0, 20)
    assert metrics["test"]["bleu"] == sacrebleu.corpus_bleu(texts, [right]).score


def test_two_stages_train_a_translation_bit_for_bit_as_one(finished: Run, tmp_path: Path) -> None:
    config = copy.deepcopy(finished.config.model_dump(mode="json"))
    config["executor"] = {"name": "csp", "stages": 2}
    assert Run.create(config, tmp_path / "two").train().digest == finished.digest


def test_a_language_model_is_searched_for_perplexity(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 60)
    config = {
        **CONFIG,
        "task": {"name": "language_model", "text": str(text), "vocabulary": 60, "length": 16},
        "executor": {"name": "csp", "stages": 2},
        "search": {**CONFIG["search"], "objectives": ["perplexity"]},
    }
    run = naspipe.run(config, tmp_path / "run")
    assert set(run.best_metrics()["test"]) == {"accuracy", "loss", "perplexity"}
    assert run.best_metrics()["test"]["perplexity"] < 26  # 28 characters occur.
    one = Run.create({**config, "executor": {"name": "sequential"}}, tmp_path / "one").train()
    assert one.digest == run.digest


# --- measure_module, for any task


def test_sums_of_measure_module_reach_metrics_with_the_place_of_each_batch(tmp_path: Path) -> None:
    from conftest import TINY, TinyTask

    starts: list[int] = []

    class Watching(TinyTask):
        def measure_module(self, module: nn.Module, batch: Batch, dataset: Any, start: int) -> dict[str, float]:
            assert torch.equal(dataset.batch([start], 0).inputs[0], batch.inputs[0])
            assert not module.training
            assert not torch.is_grad_enabled()
            starts.append(start)
            return {"seen": float(len(pytree.tree_leaves(batch.inputs)[0]))}

        def metrics(self, totals: Any) -> Any:
            return {**super().metrics(totals), "seen": totals["seen"]}

        @property
        def directions(self) -> Any:
            return {**super().directions, "seen": "maximize"}

    naspipe.register_task("watching-by-test_text_tasks")(Watching)
    search = {**TINY["search"], "budget": {"trials": 4}, "batch_size": 5, "objectives": ["seen"]}
    config = {**TINY, "task": {"name": "watching-by-test_text_tasks"}, "search": search}
    run = Run.create(config, tmp_path / "run")
    assert starts == [0]
    starts.clear()
    run.train().search()
    # First the two whole batches without calibration, then all.
    assert starts == [0, 5, 0, 5, 10] * 4
    assert {trial.metrics["seen"] for trial in run.trials()} == {12}

    class Nothing(TinyTask):
        def measure_module(self, module: nn.Module, batch: Batch, dataset: Any, start: int) -> Any:
            return None

    naspipe.register_task("nothing-by-test_text_tasks")(Nothing)
    with pytest.raises(TaskError, match="Nothing.measure_module must return a mapping from names to numbers"):
        Run.create({**TINY, "task": {"name": "nothing-by-test_text_tasks"}}, tmp_path / "none")
