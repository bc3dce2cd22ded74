"""Short glosses of common nouns, read from the WordNet 3.0 database files."""

from __future__ import annotations

from pathlib import Path

from facts import MEANINGS, article

# Lexicographer files of things with short, harmless glosses: animal, artifact, food, plant.
LEX_FILES = {"05", "06", "13", "20"}
AVOID = (
    "sex",
    "kill",
    "drug",
    "weapon",
    "arm",
    "gun",
    "slave",
    "naked",
    "corpse",
    "bomb",
    "rifle",
    "breast",
    "prostit",
    "alcohol",
    "liquor",
    "narcotic",
    "disreputable",
    "enemy",
    "religio",
    "worship",
    "war",
    "death",
    "dead",
    "tobacco",
    "shoot",
    "muzzle",
    "military",
    "bridgehead",
    "burial",
    "pistol",
    "stone wall",
    "sewage",
    "genus",
    "run-down",
    "punish",
    "fight",
    "purgative",
    "cartridge",
    "soldier",
    "ammunition",
    "toilet",
    "saber",
    "defensive",
)
DROP = set(
    """dive draw may fall steps years hours colors commune wash mount setting scene center
place spot region bow bunk manifold subsection opening flux die dice stand cover frame pipe shelter
art anode transducer manometer hall chamber threshold strip platform deck foliage cure dose crest
round short classic swallow needle grill sable clip cross trunk oak glove pony addition
piece outlet premix aloes slit heel sole john jet paneling interlayer leftfield rightfield giant
today hoof present position source theater catkin drink dipper bronc landing flag agent""".split()
)
MASS = set(
    """coffee honey soap equipment clothing silk foil sugar tea butter chicken livestock foam
fabric cotton wool milk meat bread cheese rice salt paper glass jewelry furniture cloth linen
leather toast beef pork soup candy chocolate lace velvet wire lumber brick""".split()
)


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
    """Map a noun to the (lexicographer file, definition) of each sense, most common first.

    Senses that the database spells with a capital letter (names) get an empty file number.
    """
    by_offset: dict[str, tuple[str, str]] = {}
    for line in (folder / "data.noun").read_text(encoding="latin-1").splitlines():
        if not line.startswith(" "):
            head, gloss = line.split(" | ", 1)
            fields = head.split()
            offset, lex = fields[0], fields[1] if head == head.lower() else ""
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
    own = {item.split(":")[0] for line in MEANINGS.splitlines() for item in line.split("|")}
    picked = []
    for noun, (_, sense) in sorted(frequent.items(), key=lambda item: (-item[1][0], item[0])):
        known = senses.get(noun, [])
        if not 3 <= len(noun) <= 10 or len(known) < -sense or noun in DROP | own:
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
    one = noun if noun in MASS else article(noun)
    return question.format(one=one, noun=noun), f"{one[0].upper()}{one[1:]} is {gloss}."
