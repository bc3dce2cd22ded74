"""Simple facts written for the corpus, and the questions that ask for them."""

from __future__ import annotations

import random

CAPITALS = """France:Paris|Italy:Rome|Spain:Madrid|Germany:Berlin|Portugal:Lisbon
Greece:Athens|Poland:Warsaw|Austria:Vienna|Hungary:Budapest|Ireland:Dublin|England:London
Scotland:Edinburgh|Norway:Oslo|Sweden:Stockholm|Finland:Helsinki|Denmark:Copenhagen
Belgium:Brussels|Iceland:Reykjavik|Japan:Tokyo|China:Beijing|India:New Delhi|Russia:Moscow
Turkey:Ankara|Egypt:Cairo|Kenya:Nairobi|Canada:Ottawa|Mexico:Mexico City|Brazil:Brasilia
Argentina:Buenos Aires|Chile:Santiago|Peru:Lima|Cuba:Havana|Australia:Canberra
New Zealand:Wellington|Switzerland:Bern|the Netherlands:Amsterdam
the United States:Washington|South Korea:Seoul|Thailand:Bangkok|Vietnam:Hanoi|Morocco:Rabat"""

OPPOSITES = """hot:cold|big:small|tall:short|fast:slow|happy:sad|light:dark|up:down
left:right|old:young|full:empty|open:closed|hard:soft|wet:dry|loud:quiet|early:late|rich:poor
clean:dirty|strong:weak|high:low|thick:thin|good:bad|day:night|near:far|heavy:light
true:false|win:lose|begin:end|inside:outside|first:last|always:never|give:take|push:pull
love:hate|easy:difficult|wide:narrow|sweet:sour|summer:winter|black:white|question:answer
yes:no|asleep:awake|brave:afraid|new:old"""

COLOURS = """the sky:blue|grass:green|snow:white|coal:black|a banana:yellow|a lemon:yellow
blood:red|a strawberry:red|an orange:orange|a carrot:orange|milk:white|a leaf:green
the sun:yellow|a cherry:red|chocolate:brown|an elephant:grey|a frog:green|the sea:blue
a tomato:red|a crow:black|a swan:white|a pumpkin:orange|a flamingo:pink|a cucumber:green
a bear:brown|salt:white"""

ANIMALS = """dog:barks:a kennel:puppy:bones|cat:meows:a house:kitten:fish
cow:moos:a farm:calf:grass|horse:neighs:a stable:foal:hay|sheep:bleats:a field:lamb:grass
pig:grunts:a farm:piglet:corn|duck:quacks:a pond:duckling:plants
hen:clucks:a barn:chick:grain|lion:roars:the savanna:cub:meat
frog:croaks:a pond:tadpole:insects|bird:sings:a nest:chick:seeds
bee:buzzes:a hive:larva:nectar|owl:hoots:a tree:owlet:mice|bear:growls:the forest:cub:berries
mouse:squeaks:a hole:pup:cheese|wolf:howls:the forest:pup:meat
goat:bleats:the mountains:kid:leaves|snake:hisses:the grass:hatchling:mice
rabbit:is very quiet:a burrow:kit:carrots|fox:barks:a den:cub:small animals
elephant:trumpets:the savanna:calf:leaves|monkey:chatters:the jungle:infant:fruit"""

LEGS = {
    "dog": 4,
    "cat": 4,
    "cow": 4,
    "horse": 4,
    "bird": 2,
    "duck": 2,
    "hen": 2,
    "spider": 8,
    "bee": 6,
    "ant": 6,
    "fish": 0,
    "snake": 0,
    "frog": 4,
    "lion": 4,
    "person": 2,
    "fly": 6,
}

MEANINGS = """cat:a small furry animal that people keep as a pet
dog:a friendly animal that people keep as a pet|bird:an animal with feathers and two wings
fish:an animal that lives in water and breathes through gills
tree:a tall plant with a trunk, branches and leaves
river:a long stream of water that flows to the sea|mountain:a very high piece of land
computer:a machine that stores data and follows instructions
book:a set of pages with words to read|house:a building where people live
car:a machine with wheels that people drive|boat:a small ship that travels on water
bridge:a road built over a river|school:a place where children learn
teacher:a person who helps others to learn|doctor:a person who helps sick people
farmer:a person who grows food|baker:a person who makes bread
island:land with water all around it|lake:a large area of water with land around it
forest:a large area full of trees|garden:a piece of ground where plants grow
clock:a machine that shows the time|lamp:a thing that gives light|chair:a seat for one person
table:a flat board on legs|key:a piece of metal that opens a lock
star:a very hot ball of gas that shines in the sky
planet:a large round body that moves around a star
moon:a round body that moves around a planet|sun:the star that gives us light and heat
cloud:many small drops of water in the sky|rain:water that falls from the clouds
snow:frozen water that falls in white flakes|ice:water that is frozen and hard
wind:air that moves|fire:the light and heat of something that burns
music:sounds that are pleasant to hear
server:a computer that answers requests from other computers
program:a list of instructions for a computer
language model:a program that learns from text and predicts the next word
token:a small piece of text|robot:a machine that can do work for people
number:a word or sign that says how many|triangle:a shape with three sides
square:a shape with four equal sides|circle:a round shape
bread:food made from flour and water|cheese:food made from milk
apple:a round fruit that grows on trees|friend:a person you know well and like
story:words that tell what happened|map:a drawing that shows where places are
letter:a sign used to write words|spoon:a tool for eating soup"""

GENERAL = """How many days are in a week?:There are seven days in a week.
How many months are in a year?:There are twelve months in a year.
How many hours are in a day?:There are twenty-four hours in a day.
How many minutes are in an hour?:There are sixty minutes in an hour.
How many seconds are in a minute?:There are sixty seconds in a minute.
How many letters are in the alphabet?:There are twenty-six letters in the English alphabet.
How many seasons are there?:There are four seasons: spring, summer, autumn and winter.
What is the largest planet?:The largest planet is Jupiter.
What is the largest ocean?:The largest ocean is the Pacific Ocean.
What is the largest animal?:The largest animal is the blue whale.
What is the tallest animal?:The tallest animal is the giraffe.
What is the fastest land animal?:The fastest land animal is the cheetah.
What is the highest mountain?:The highest mountain is Mount Everest.
What do we call frozen water?:Frozen water is called ice.
Where does the sun rise?:The sun rises in the east.
Where does the sun set?:The sun sets in the west.
What do bees make?:Bees make honey.
What do plants need to grow?:Plants need light, water and air to grow.
What do we breathe?:We breathe air.
What is the first month of the year?:The first month of the year is January.
What is the last month of the year?:The last month of the year is December.
Which planet do we live on?:We live on the planet Earth.
What is bread made of?:Bread is made of flour, water, salt and yeast.
What is cheese made of?:Cheese is made of milk.
How many sides does a triangle have?:A triangle has three sides.
How many sides does a square have?:A square has four sides.
How many wheels does a car have?:A car has four wheels.
How many wheels does a bicycle have?:A bicycle has two wheels.
Is the earth round?:Yes, the earth is round.
Is fire cold?:No, fire is hot.
Is ice hot?:No, ice is cold.
Can a fish swim?:Yes, a fish can swim.
Can a bird fly?:Yes, most birds can fly.
Can a dog fly?:No, a dog cannot fly.
Who wrote Pride and Prejudice?:Jane Austen wrote Pride and Prejudice.
Who wrote Hamlet?:William Shakespeare wrote Hamlet.
What is H2O?:H2O is the chemical name of water."""

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = (
    "January February March April May June July August September October November December"
).split()
NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen twenty"
).split()


def _pairs(block: str) -> list[list[str]]:
    """Split a ``a:b|c:d`` block into its records."""
    return [item.split(":") for line in block.splitlines() for item in line.split("|")]


_CAPITALS, _OPPOSITES, _COLOURS = _pairs(CAPITALS), _pairs(OPPOSITES), _pairs(COLOURS)
_ANIMALS, _MEANINGS = _pairs(ANIMALS), _pairs(MEANINGS)
_GENERAL = [line.split("?:") for line in GENERAL.splitlines()]


def article(noun: str) -> str:
    """Return ``noun`` with its indefinite article."""
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def _cap(text: str) -> str:
    return text[0].upper() + text[1:]


def capital(rng: random.Random) -> tuple[str, str]:
    """Question about the capital of a country."""
    country, city = rng.choice(_CAPITALS)
    if rng.random() < 0.25:
        question = rng.choice(
            [f"{city} is the capital of which country?", f"Which country has the capital {city}?"]
        )
        return question, f"{city} is the capital of {country}."
    question = rng.choice(
        [
            f"What is the capital of {country}?",
            f"What is the capital of {country}?",
            f"Tell me the capital of {country}.",
            f"Which city is the capital of {country}?",
            f"Do you know the capital of {country}?",
            f"what is the capital of {country}",
            f"Name the capital of {country}.",
        ]
    )
    return question, f"The capital of {country} is {city}."


def opposite(rng: random.Random) -> tuple[str, str]:
    """Question about the opposite of a word."""
    first, second = rng.choice(_OPPOSITES)
    question = rng.choice(
        [
            f"What is the opposite of {first}?",
            f"What is the opposite of {first}?",
            f"Give me the opposite of {first}.",
            f"Which word is the opposite of {first}?",
            f"what is the opposite of {first}",
        ]
    )
    return question, f"The opposite of {first} is {second}."


def colour(rng: random.Random) -> tuple[str, str]:
    """Question about the colour of a thing."""
    thing, hue = rng.choice(_COLOURS)
    question = rng.choice(
        [
            f"What colour is {thing}?",
            f"What color is {thing}?",
            f"Tell me the colour of {thing}.",
            f"what color is {thing}",
        ]
    )
    return question, f"{_cap(thing)} is {hue}."


def animal(rng: random.Random) -> tuple[str, str]:
    """Question about a common animal."""
    name, sound, home, young, food = rng.choice(_ANIMALS)
    one = article(name)
    kind = rng.randrange(5)
    if kind == 0:
        return f"What sound does {one} make?", f"{_cap(one)} {sound}."
    if kind == 1:
        return f"Where does {one} live?", f"{_cap(one)} lives in {home}."
    if kind == 2:
        return f"What is a young {name} called?", f"A young {name} is called {article(young)}."
    if kind == 3:
        return f"What does {one} eat?", f"{_cap(one)} eats {food}."
    name, legs = rng.choice(list(LEGS.items()))
    count = NUMBERS[legs] if legs else "no"
    return f"How many legs does {article(name)} have?", f"{_cap(article(name))} has {count} legs."


def meaning(rng: random.Random) -> tuple[str, str]:
    """Question about the meaning of a common word."""
    word, gloss = rng.choice(_MEANINGS)
    mass = word in {"rain", "snow", "ice", "wind", "fire", "music", "bread", "cheese"}
    name = word if mass else f"the {word}" if word in {"sun", "moon"} else article(word)
    question = rng.choice(
        [
            f"What is {name}?",
            f"What is {name}?",
            f"What does {word} mean?",
            f"Explain what {name} is.",
            f"Tell me what {name} is.",
            f"what is {name}",
        ]
    )
    return question, f"{_cap(name)} is {gloss}."


def arithmetic(rng: random.Random) -> tuple[str, str]:
    """Small addition, subtraction or multiplication."""
    a, b = rng.randint(0, 12), rng.randint(0, 12)
    kind = rng.choice("++--*")
    if kind == "*":
        a, b = rng.randint(1, 6), rng.randint(1, 6)
        word, result = "times", a * b
    elif kind == "+":
        word, result = "plus", a + b
    else:
        a, b = max(a, b), min(a, b)
        word, result = "minus", a - b
    sign = kind if rng.random() < 0.4 else word
    question = rng.choice(
        [f"What is {a} {sign} {b}?", f"How much is {a} {sign} {b}?", f"what is {a} {sign} {b}"]
    )
    return question, f"{a} {sign} {b} is {result}."


def calendar(rng: random.Random) -> tuple[str, str]:
    """Question about the order of days, months, letters or numbers."""
    names = rng.choice([DAYS, DAYS, MONTHS, MONTHS, NUMBERS[1:13], list("ABCDEFGHIJKLMNOP")])
    what = {"M": "day", "J": "month", "o": "number", "A": "letter"}[names[0][0]]
    i = rng.randrange(1, len(names) - 1)
    if rng.random() < 0.6:
        question = rng.choice(
            [f"What {what} comes after {names[i]}?", f"Which {what} comes after {names[i]}?"]
        )
        return question, f"The {what} after {names[i]} is {names[i + 1]}."
    return (
        f"Which {what} comes before {names[i]}?",
        f"The {what} before {names[i]} is {names[i - 1]}.",
    )


def general(rng: random.Random) -> tuple[str, str]:
    """One of the fixed general questions."""
    question, answer = rng.choice(_GENERAL)
    return question + "?", answer


KINDS = [
    capital,
    capital,
    opposite,
    colour,
    animal,
    animal,
    meaning,
    meaning,
    arithmetic,
    calendar,
    general,
    general,
]


def fact(rng: random.Random) -> tuple[str, str]:
    """A random question with its answer."""
    return rng.choice(KINDS)(rng)
