"""Documents that ask for a value given earlier in the same text."""

from __future__ import annotations

import random

from stories import BOYS, COLOURS, GIRLS, OBJECTS, PLACES, story

EXTRA = ["bag", "door", "chair", "table", "cup", "car", "bike", "ring", "clock", "shelf"]
HUES = [*COLOURS, "grey", "pink", "orange", "purple"]
JOBS = ["teacher", "doctor", "farmer", "baker", "driver", "singer", "writer", "painter"]
LIKES = ["apples", "music", "books", "cats", "dogs", "tea", "rain", "cake", "bread", "fish"]
FILLER = [
    "The sun was warm and the sky was blue.",
    "A bird was singing in a tree.",
    "The children went to school in the morning.",
    "It was a quiet day in the village.",
    "The wind moved the leaves.",
    "A cat slept near the window.",
    "The river flows slowly to the sea.",
    "People were talking at the market.",
    "It rained a little in the evening.",
    "The baker opened the shop early.",
    "There was a small garden behind the house.",
    "The train was late again.",
    "Somebody left a light on.",
    "The soup was hot and very good.",
    "An old man walked along the road.",
    "The dog ran after the ball.",
    "The library is closed on Sunday.",
    "We had bread and cheese for lunch.",
    "The stars were bright that night.",
    "Nobody was in a hurry.",
]

Item = tuple[str, str, str]


def code(rng: random.Random) -> str:
    """A random number of three or four digits."""
    return str(rng.randint(100, 9999))


def _codes(rng: random.Random, count: int) -> list[Item]:
    """Codes of coloured things: statement, question and answer."""
    names: set[str] = set()
    while len(names) < count:
        names.add(f"{rng.choice(HUES)} {rng.choice(OBJECTS + EXTRA)}")
    word = rng.choice(["code", "code", "number", "price"])
    items = []
    for name in sorted(names, key=lambda _: rng.random()):
        value = code(rng)
        items.append(
            (f"The {word} of the {name} is {value}.", f"What is the {word} of the {name}?", value)
        )
    return items


def _people(rng: random.Random, count: int) -> list[Item]:
    """Simple facts about named people."""
    items: list[Item] = []
    for name in rng.sample(GIRLS + BOYS, min(count, 20)):
        kind = rng.randrange(5)
        if kind == 0:
            value = rng.choice(JOBS)
            items.append((f"{name} is a {value}.", f"What is {name}?", f"{name} is a {value}."))
        elif kind == 1:
            value = rng.choice(LIKES)
            items.append(
                (f"{name} likes {value}.", f"What does {name} like?", f"{name} likes {value}.")
            )
        elif kind == 2:
            value = rng.choice(PLACES)
            items.append(
                (f"{name} is at the {value}.", f"Where is {name}?", f"{name} is at the {value}.")
            )
        elif kind == 3:
            value = f"{rng.choice(HUES)} {rng.choice(OBJECTS)}"
            items.append(
                (f"{name} has a {value}.", f"What does {name} have?", f"{name} has a {value}.")
            )
        else:
            value = code(rng)
            items.append(
                (f"The number of {name} is {value}.", f"What is the number of {name}?", value)
            )
    return items


def filler(rng: random.Random, words: int) -> list[str]:
    """Sentences that carry no value to remember, about ``words`` words."""
    out: list[str] = []
    total = 0
    while total < words:
        if rng.random() < 0.2:
            picked = [s.strip() + "." for s in story(rng)[1].split(".") if s.count('"') % 2 == 0]
            picked = [s for s in picked if len(s) > 3][:4]
        else:
            picked = [rng.choice(FILLER)]
        out += picked
        total += sum(s.count(" ") + 1 for s in picked)
    return out


def copy(rng: random.Random) -> tuple[str, str]:
    """A request to repeat a text, word by word."""
    kind = rng.randrange(4)
    if kind == 0:
        text = " ".join(code(rng) for _ in range(rng.randint(1, 5)))
    elif kind == 1:
        words = [*GIRLS, *BOYS, *HUES, *OBJECTS, *EXTRA, *JOBS, *LIKES, *PLACES]
        text = " ".join(rng.sample(words, rng.randint(2, 10)))
    elif kind == 2:
        text = " ".join(item[0] for item in _people(rng, rng.randint(1, 3)))
    else:
        text = " ".join(item[0] for item in _codes(rng, rng.randint(1, 3)))
    return rng.choice(["Repeat: ", "Repeat this: ", "Say this again: ", "Copy this: "]) + text, text


def recall(rng: random.Random, words: int, count: int) -> list[tuple[str, str]]:
    """Turns of one recall chat: text with ``count`` facts in about ``words`` words of filler."""
    items = _codes(rng, count) if rng.random() < 0.65 else _people(rng, count)
    lines = filler(rng, words) if words else []
    for statement, _, _ in items:
        lines.insert(rng.randint(0, len(lines)), statement)
    # Many questions about one text: most of the learning signal of copying is in the answers.
    asked = rng.sample(items, len(items) if rng.random() < 0.7 else 1)
    opening = rng.choice(["", "", "", "Read this text. ", "Remember this: "])
    if rng.random() < 0.3 and not words:
        turns = [(opening + " ".join(lines), rng.choice(["OK.", "I will remember that."]))]
        return turns + [(question, answer) for _, question, answer in asked]
    first = (opening + " ".join(lines) + rng.choice([" ", "\n", "\n\n"]) + asked[0][1], asked[0][2])
    return [first] + [(question, answer) for _, question, answer in asked[1:]]
