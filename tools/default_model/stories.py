"""Short stories with small, consistent plots, written from a restricted vocabulary."""

from __future__ import annotations

import random

GIRLS = "Anna Mia Lily Emma Sara Nora Ella Lucy Rosa Clara".split()
BOYS = "Tom Ben Max Leo Sam Jack Finn Oscar Paul Hugo".split()
PETS = ["dog", "cat", "rabbit", "bird", "pony", "duck"]
PLACES = [
    "park",
    "forest",
    "garden",
    "beach",
    "village",
    "market",
    "farm",
    "lake",
    "school",
    "library",
]
OBJECTS = [
    "ball",
    "kite",
    "book",
    "hat",
    "key",
    "lamp",
    "boat",
    "map",
    "drum",
    "box",
    "coin",
    "basket",
]
COLOURS = ["red", "blue", "green", "yellow", "white", "black", "brown", "golden"]
HIDDEN = [
    "under a tree",
    "behind a big stone",
    "under the bed",
    "in a bush",
    "near the river",
    "behind the door",
    "on top of a wall",
    "under a bench",
]
TIMES = [
    "One day",
    "One sunny morning",
    "One evening",
    "On a cold day",
    "One afternoon",
    "Early one morning",
]
MORALS = [
    "From that day on, they were good friends.",
    "They were both very happy.",
    "It was a very good day.",
    "Everyone smiled and went home.",
    "They laughed and hugged each other.",
    "That night, {a} slept well.",
]
ANIMAL_HEROES = ["fox", "bear", "mouse", "rabbit", "owl", "frog", "cat", "dog", "duck", "lion"]
FOODS = ["apples", "bread", "soup", "cake", "cookies", "berries", "cheese", "pears"]


def _an(noun: str) -> str:
    """``noun`` with its article."""
    return ("an " if noun[0] in "aeiou" else "a ") + noun


class _Person:
    """A named character with pronouns."""

    def __init__(self, name: str, girl: bool) -> None:
        self.name = name
        self.he, self.him, self.his = ("she", "her", "her") if girl else ("he", "him", "his")
        self.He = self.he.capitalize()
        self.child = "girl" if girl else "boy"


def _people(rng: random.Random, name: str | None = None) -> tuple[_Person, _Person]:
    """Two different characters, the first one named ``name`` if given."""
    girl = (name in GIRLS) if name else rng.random() < 0.5
    first = _Person(name or rng.choice(GIRLS if girl else BOYS), girl)
    other_girl = rng.random() < 0.5
    names = [n for n in (GIRLS if other_girl else BOYS) if n != first.name]
    return first, _Person(rng.choice(names), other_girl)


def _lost(rng: random.Random, a: _Person, b: _Person, thing: str) -> str:
    """A thing is lost and a friend helps to find it."""
    colour, place, spot = rng.choice(COLOURS), rng.choice(PLACES), rng.choice(HIDDEN)
    return (
        f"Once upon a time, there was a little {a.child} named {a.name}. {a.name} had a {colour} "
        f"{thing}. {rng.choice(TIMES)}, {a.name} went to the {place} with the {thing}. But then "
        f"{a.he} could not find it. {a.name} was very sad. {a.He} asked {b.name} for help. "
        f'"Have you seen my {colour} {thing}?" {a.he} said. "No, but I can help you," said '
        f"{b.name}. They looked everywhere. At last, {b.name} found the {thing} {spot}. "
        f'"Thank you, {b.name}!" said {a.name}. '
    )


def _share(rng: random.Random, a: _Person, b: _Person, thing: str) -> str:
    """Someone learns to share."""
    colour, place = rng.choice(COLOURS), rng.choice(PLACES)
    return (
        f"{a.name} was a little {a.child} who loved to play. {rng.choice(TIMES)}, {a.name} got a "
        f'new {colour} {thing}. {a.He} took it to the {place}. {b.name} was there too. "Can I '
        f'play with your {thing}?" asked {b.name}. "No, it is mine," said {a.name}. {b.name} '
        f'was sad and sat down. Then {a.name} felt bad. {a.He} went to {b.name} and said, "I am '
        f'sorry. We can play together." {b.name} smiled. They played with the {colour} {thing} '
        f"all day. "
    )


def _pet(rng: random.Random, a: _Person, b: _Person, pet: str) -> str:
    """A lost animal finds a home."""
    colour, place, food = rng.choice(COLOURS), rng.choice(PLACES), rng.choice(FOODS)
    return (
        f"{rng.choice(TIMES)}, {a.name} walked to the {place}. There {a.he} saw a small {colour} "
        f'{pet}. The {pet} was hungry and alone. "Do not be afraid," said {a.name}. {a.He} gave '
        f'the {pet} some {food} and water. Then {b.name} came and said, "That is my {pet}! I '
        f'looked for it all day." {a.name} gave the {pet} back. {b.name} was so happy that '
        f'{b.he} said, "You can come and play with the {pet} every day." '
    )


def _animals(rng: random.Random, hero: str) -> str:
    """Two animals help each other."""
    friend = rng.choice([x for x in ANIMAL_HEROES if x != hero])
    place = rng.choice(["forest", "garden", "farm", "lake", "field"])
    food = rng.choice(FOODS)
    problem, fix = rng.choice(
        [
            ("was stuck in a deep hole", "brought a long branch and pulled"),
            ("was cold in the rain", "made room in a warm little house"),
            ("was hungry and had no food", f"shared a basket of {food}"),
            ("was lost and could not find the way home", "knew the way and walked along"),
            ("was afraid of the dark", "brought a small lamp and stayed all night"),
        ]
    )
    return (
        f"Once upon a time, a little {hero} lived near the {place}. {rng.choice(TIMES)}, the "
        f'{hero} met {_an(friend)}. The {friend} {problem}. "Please help me," said the {friend}. '
        f'"Of course I will help you," said the {hero}. The {hero} {fix}. "You are very '
        f'kind," said the {friend}. Later they sat by the {rng.choice(["fire", "water", "tree"])} '
        f"and ate {food} together. The {hero} and the {friend} became best friends. "
    )


def _bake(rng: random.Random, a: _Person, b: _Person) -> str:
    """A small kitchen story."""
    food = rng.choice([*FOODS[3:5], "bread", "a pie"])
    guest = rng.choice(["mother", "father", "grandmother", "teacher"])
    return (
        f"{a.name} and {b.name} wanted to make {food} for their {guest}. "
        f"First, they washed their hands. Then {a.name} took the flour and {b.name} took the "
        f'milk. {b.name} dropped the milk on the floor. "Oh no!" said {b.name}. "Do not '
        f'worry," said {a.name}. "We can clean it together." They cleaned the floor and tried '
        f"again. Soon the kitchen smelled very good. Everyone ate and was happy. "
    )


def _journey(rng: random.Random, a: _Person, b: _Person, thing: str) -> str:
    """A walk with a discovery."""
    colour = rng.choice(COLOURS)
    first, second = rng.sample(PLACES, 2)
    return (
        f"{rng.choice(TIMES)}, {a.name} and {b.name} went on a long walk. First they came to the "
        f"{first}. Then they came to the {second}. There {a.name} saw something {colour} on the "
        f'ground. It was a {thing}. "Whose {thing} is this?" asked {a.name}. An old '
        f'{rng.choice(["man", "woman"])} came and said, "It is mine. I lost it yesterday." '
        f'{a.name} gave the {thing} back. "You are honest," said the old person, and gave them '
        f"some {rng.choice(FOODS)}. Then {a.name} and {b.name} walked home. "
    )


def story(rng: random.Random) -> tuple[str, str]:
    """Return a request for a story and the story."""
    kind = rng.randrange(7)
    if kind >= 5:
        hero = rng.choice(ANIMAL_HEROES)
        text = _animals(rng, hero)
        ending = rng.choice(
            [
                "It was a very good day.",
                "They lived happily ever after.",
                "And they were never alone again.",
            ]
        )
        topic = rng.choice([_an(hero), "an animal", "friends"])
    else:
        a, b = _people(rng)
        thing, pet = rng.choice(OBJECTS), rng.choice(PETS)
        write, topics = [
            (lambda: _lost(rng, a, b, thing), [f"a {thing}", a.name, "friends"]),
            (lambda: _share(rng, a, b, thing), [f"a {thing}", a.name, "sharing"]),
            (lambda: _pet(rng, a, b, pet), [f"a {pet}", a.name, "an animal"]),
            (lambda: _bake(rng, a, b), [a.name, f"{a.name} and {b.name}", "a kitchen"]),
            (
                lambda: _journey(rng, a, b, thing),
                [f"a {thing}", f"{a.name} and {b.name}", "a walk"],
            ),
        ][kind]
        text, topic = write(), rng.choice(topics)
        ending = rng.choice(MORALS).format(a=a.name)
    request = rng.choice(
        [
            f"Tell me a story about {topic}.",
            f"Write a short story about {topic}.",
            f"Tell me a short story about {topic}.",
            f"Can you tell me a story about {topic}?",
            "Tell me a story.",
            "Tell me a short story.",
            "Please tell me a story.",
        ]
    )
    return request, text + ending
