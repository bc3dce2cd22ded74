"""Short glosses of common nouns, read from the WordNet 3.0 database files."""

from __future__ import annotations

from pathlib import Path

from facts import article

# Lexicographer files of things that can be named in a short, harmless answer: act (04), animal
# (05), artifact (06), event (11), food (13), location (15), object (17), plant (20), time (28).
LEX_FILES = {"05", "06", "13", "15", "17", "20", "28"}
AVOID = ("sex", "kill", "drug", "weapon", "gun", "slave", "naked", "corpse", "bomb", "race",
         "breast", "genital", "anus", "urin", "excre", "prostit", "alcohol", "liquor", "nazi",
         "religio", "god", "war", "death", "dead", "tobacco", "shoot", "ammunition", "military")


def _frequent_senses(path: Path) -> dict[str, tuple[int, int]]:
    """Map a noun to (uses counted in the sense-tagged texts, its most used sense number)."""
    best: dict[str, tuple[int, int]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        key, sense, count = line.split()
        lemma, rest = key.split("%", 1)
        if rest.startswith("1:") and lemma.isalpha() and lemma.islower():
            best[lemma] = max(best.get(lemma, (0, 0)), (int(count), -int(sense)))
    return best


def _glosses(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """Map a noun to the (lexicographer file, definition) of each sense, most common first."""
    by_offset: dict[str, tuple[str, str]] = {}
    for line in (folder / "data.noun").read_text(encoding="latin-1").splitlines():
        if not line.startswith(" "):
            head, gloss = line.split(" | ", 1)
            offset, lex = head.split()[:2]
            by_offset[offset] = (lex, gloss.split(";")[0].split(' "')[0].strip())
    senses: dict[str, list[tuple[str, str]]] = {}
    for line in (folder / "index.noun").read_text(encoding="latin-1").splitlines():
        if not line.startswith(" "):
            parts = line.split()
            count = int(parts[2])
            senses[parts[0]] = [by_offset[o] for o in parts[-count:]]
    return senses


def common_nouns(folder: Path, limit: int) -> list[tuple[str, str]]:
    """Return up to ``limit`` (noun, gloss) pairs, the most frequent nouns first."""
    frequent = _frequent_senses(folder / "cntlist.rev")
    senses = _glosses(folder)
    picked = []
    for noun, (_, sense) in sorted(frequent.items(), key=lambda item: (-item[1][0], item[0])):
        known = senses.get(noun, [])
        if not 3 <= len(noun) <= 10 or len(known) < -sense:
            continue
        lex, gloss = known[-sense - 1]
        bad = any(word in gloss or word in noun for word in AVOID)
        shaped = gloss.startswith(("a ", "an ", "the ", "any ")) and "(" not in gloss
        if lex in LEX_FILES and shaped and not bad and 3 <= gloss.count(" ") <= 11:
            picked.append((noun, gloss))
        if len(picked) == limit:
            break
    return picked


def definition(noun: str, gloss: str, question: str) -> tuple[str, str]:
    """Turn a gloss into one exchange."""
    one = article(noun)
    return question.format(one=one, noun=noun), f"{one[0].upper()}{one[1:]} is {gloss}."
