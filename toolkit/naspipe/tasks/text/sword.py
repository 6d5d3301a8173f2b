"""SWORD modules: public-domain Bibles as Debian packages them, read verse by verse."""

from __future__ import annotations

import functools
import hashlib
import html
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from naspipe.errors import TaskError
from naspipe.tasks.cache import cached
from naspipe.tasks.text.extra import import_extra, version_of
from naspipe.wording import listing

READER = "1"
"""Version of the conversion of markup to text; a change makes the cache invalid."""

_PACKAGES = {
    "engWEB2015eb": "sword-text-web",
    "engKJV2006eb": "sword-text-kjv",
    "spaRV1909eb": "sword-text-sparv",
}
"""The Debian packages of modules that are known to be aligned with each other."""

# Markup that is not text of the verse: foot notes, headings, variant readings, and a glossary after the last verse.
_APPENDIX = re.compile(r"<div\b[^>]*\btype=\"glossary\".*", re.DOTALL)
_ASIDE = re.compile(r"<(note|title|rdg|figure|catchWord)\b[^>]*(?:/>|>.*?</\1>)", re.DOTALL)
_BREAK = re.compile(r"</?(?:l|lb|lg|p|div|item|list|chapter|speaker|milestone)\b[^>]*>")
_TAG = re.compile(r"<[^>]*>")
_SPACE_BEFORE = re.compile(r" (?=[,.;:!?)”])")


def sword_folder() -> Path:
    """Return the folder of the modules: that of the environment variable ``SWORD_PATH``, or Debian's."""
    return Path(os.environ.get("SWORD_PATH", "/usr/share/sword"))


def read_verses(module: str, cache: Path) -> dict[str, str]:
    """Return the verses of a module by reference, in the module's order.

    Args:
        module: Name of the module.
        cache: Folder for the verses.

    Raises:
        TaskError: The module or the package ``pysword`` is missing, or the module cannot be read.
    """
    found = find_modules([module])
    key = ("sword", READER, version_of("pysword"), module, *_fingerprint(found, module))

    def make() -> bytes:
        return json.dumps(dict(verses_of(found, module)), ensure_ascii=False).encode("utf-8")

    verses: dict[str, str] = json.loads(cached(cache, f"sword-{module}", key, make))
    if not verses:
        raise TaskError(f"a SWORD module must have verses, but {module!r} in {sword_folder()} has none.")
    return verses


def verses_of(found: Any, module: str, books: Sequence[str] | None = None) -> Iterator[tuple[str, str]]:
    """Yield reference and text of every verse that is not empty.

    Args:
        found: The installed modules, from ``find_modules``.
        module: The name of a module.
        books: Names of the books to read, or None: all.

    Raises:
        TaskError: The module cannot be read.
    """
    markup = str(found.parse_modules()[module].get("sourcetype", ""))
    try:
        bible = found.get_bible_from_module(module)
        # pysword unpacks a whole book for each verse. With this cache, a text takes 3 seconds instead of 60.
        if hasattr(bible, "_decompressed_text"):
            bible._decompressed_text = functools.lru_cache(maxsize=2)(bible._decompressed_text)
        for testament in bible.get_structure().get_books().values():
            for book in testament:
                if books is not None and book.name not in books:
                    continue
                for chapter in range(1, book.num_chapters + 1):
                    texts = bible.get_iter(books=[book.name], chapters=[chapter], clean=markup.upper() != "OSIS")
                    for number, text in enumerate(texts, start=1):
                        verse = plain_text(text)
                        if verse:
                            yield f"{book.osis_name} {chapter}:{number}", verse
    except (OSError, ValueError, NotImplementedError) as error:
        raise TaskError(f"SWORD module {module!r} in {sword_folder()} cannot be read: {error}.") from error


def plain_text(markup: str) -> str:
    """Return the words of a verse in OSIS markup, with single spaces."""
    text = _ASIDE.sub(" ", _APPENDIX.sub("", markup))
    text = html.unescape(_TAG.sub("", _BREAK.sub(" ", text)))
    return _SPACE_BEFORE.sub("", " ".join(text.split()))


def find_modules(names: Sequence[str]) -> Any:
    """Return the installed modules, as an object of pysword.

    Args:
        names: Modules that must be installed.

    Raises:
        TaskError: ``pysword`` or a module is missing; the message names all missing modules.
    """
    found = import_extra("pysword.modules", "reading a SWORD module").SwordModules(str(sword_folder()))
    try:
        there = sorted(found.parse_modules())
    except FileNotFoundError:
        there = []
    missing = [name for name in names if name not in there]
    if missing:
        packages = [_PACKAGES[name] for name in missing if name in _PACKAGES]
        # The package of an unknown module is not known, so the message suggests the known packages.
        debian = " ".join(packages or _PACKAGES.values())
        raise TaskError(
            f"SWORD modules must be installed, but {sword_folder()} lacks {listing(missing)}. It has "
            f"{listing(there)}. Debian has {'these' if packages else 'others'}: apt-get install {debian}. Or set "
            "SWORD_PATH to the folder they are in, or give the task text files of your own."
        )
    return found


def _fingerprint(found: Any, module: str) -> list[str]:
    """Return everything that the text of a module depends on: its settings, and the digests of its files."""
    settings = found.parse_modules()[module]
    folder = sword_folder() / str(settings.get("datapath", ""))
    prints = [json.dumps(settings, sort_keys=True)]
    for path in sorted(path for path in folder.glob("*") if path.is_file()):
        prints.append(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}")
    return prints
