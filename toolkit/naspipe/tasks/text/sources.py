"""Sources of text: files, SWORD modules, and the help topics of Python's standard library."""

from __future__ import annotations

from pathlib import Path

from naspipe.errors import TaskError
from naspipe.tasks.text.sword import find_modules, read_verses

SWORD = "sword:"
"""The prefix of the name of a SWORD module."""

ENGLISH, SPANISH = f"{SWORD}engWEB2015eb", f"{SWORD}spaRV1909eb"
"""The World English Bible and the Reina-Valera of 1909."""

TOPICS = "pydoc"
"""The text that comes with Python: about 465,000 characters of its language reference."""


def read_pairs(source: str, target: str, cache: Path) -> list[tuple[str, str]]:
    """Return pairs of a text and its translation; pairs with an empty side are left out.

    Args:
        source: A SWORD module as ``sword:NAME``, or the path of a text file.
        target: A source of the same kind; modules are aligned by verse, files by line.
        cache: Folder for texts that are slow to read.

    Raises:
        TaskError: A source is missing or malformed, or the two do not match.
    """
    if source.startswith(SWORD) != target.startswith(SWORD):
        raise TaskError(
            f"source and target must both be SWORD modules ({SWORD}NAME) or both be text files, but are "
            f"{source!r} and {target!r}."
        )
    if source.startswith(SWORD):
        names = [name.removeprefix(SWORD) for name in (source, target)]
        find_modules(names)
        one, two = (read_verses(name, cache) for name in names)
        pairs = [(text, two[reference]) for reference, text in one.items() if reference in two]
    else:
        lines, others = read_file(source).split("\n"), read_file(target).split("\n")
        if len(lines) != len(others):
            raise TaskError(
                f"line n of one file must translate line n of the other, but {source} has {len(lines)} lines and "
                f"{target} has {len(others)}."
            )
        pairs = [(" ".join(a.split()), " ".join(b.split())) for a, b in zip(lines, others, strict=True)]
    pairs = [pair for pair in pairs if all(pair)]
    if not pairs:
        raise TaskError(f"{source} and {target} must have pairs of texts, but have none.")
    return pairs


def read_text(source: str, cache: Path) -> str:
    """Return a text.

    Args:
        source: ``pydoc``, a SWORD module as ``sword:NAME``, or the path of a text file.
        cache: Folder for texts that are slow to read.

    Raises:
        TaskError: It is missing or malformed.
    """
    if source == TOPICS:
        return _read_topics()
    if source.startswith(SWORD):
        return "\n".join(read_verses(source.removeprefix(SWORD), cache).values()) + "\n"
    return read_file(source)


def read_file(path: str) -> str:
    """Return the text of a UTF-8 file, with one newline between lines and none after the last line.

    Raises:
        TaskError: It is missing, or is not UTF-8.
    """
    try:
        text = Path(path).expanduser().read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise TaskError(
            f"the text file {path} cannot be read: {error.strerror or error}. A relative path starts at the "
            f"working directory, {Path.cwd()}."
        ) from error
    except UnicodeDecodeError as error:
        raise TaskError(f"the text file {path} must be UTF-8, but is not: {error}. Convert it first.") from error
    return text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n")


def _read_topics() -> str:
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise TaskError(
            f"the text {TOPICS!r} needs Python's module pydoc_data, which this Python lacks: {error}. Name a text "
            "file instead."
        ) from error
    return "\n".join(topics[name].strip() for name in sorted(topics)) + "\n"
