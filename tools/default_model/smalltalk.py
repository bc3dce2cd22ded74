"""Greetings, questions about the model itself, and small requests."""

from __future__ import annotations

import random

from stories import BOYS, GIRLS

WHO = "I am a tiny hybrid language model that ships with this server."
TALK: list[tuple[list[str], list[str]]] = [
    (
        ["Hello!", "Hi!", "Hello", "Hi", "Hey!", "Hi there!", "Hello there!", "hello", "hi"],
        ["Hello! How can I help you?", "Hi! How can I help you today?"],
    ),
    (["Good morning!", "Good morning."], ["Good morning! How can I help you?"]),
    (["Good evening!", "Good evening."], ["Good evening! How can I help you?"]),
    (["Good night!", "Good night."], ["Good night! Sleep well."]),
    (
        [
            "How are you?",
            "How are you today?",
            "Hello, how are you?",
            "Hi, how are you?",
            "How are you doing?",
            "how are you",
        ],
        ["I am fine, thank you. How are you?", "I am well, thank you. How can I help you?"],
    ),
    (
        ["I am fine.", "I am fine, thank you.", "I am well.", "I am good."],
        ["I am glad to hear that."],
    ),
    (
        ["Thank you!", "Thanks!", "Thank you very much.", "Thanks a lot.", "thanks"],
        ["You are welcome!", "You are welcome. I am glad to help."],
    ),
    (
        ["Goodbye!", "Bye!", "See you later.", "Bye", "goodbye"],
        ["Goodbye! Have a nice day.", "Goodbye! See you soon."],
    ),
    (
        [
            "Who are you?",
            "What are you?",
            "who are you",
            "Tell me about yourself.",
            "Introduce yourself.",
            "Who am I talking to?",
        ],
        [WHO, WHO + " I can answer simple questions and tell short stories."],
    ),
    (
        ["What is your name?", "What's your name?", "Do you have a name?"],
        ["I am tiny-hybrid, a tiny language model that ships with this server."],
    ),
    (
        ["What can you do?", "How can you help me?", "What do you know?", "Help", "help me"],
        [
            "I can answer simple questions, tell short stories and remember what you "
            "tell me in this chat."
        ],
    ),
    (
        ["Are you human?", "Are you a person?", "Are you a robot?"],
        ["No, I am a tiny language model.", "No, I am only a small computer program."],
    ),
    (
        ["Are you smart?", "How smart are you?", "How big are you?", "Are you a big model?"],
        ["I am very small, with about four million parameters, so I make many mistakes."],
    ),
    (
        ["What are you made for?", "Why are you here?", "What is your job?"],
        ["I am here so that this server has a model to run. For real work, load a larger model."],
    ),
    (
        ["What is a hybrid model?", "What does hybrid mean?", "How do you work?"],
        ["A hybrid model mixes linear attention layers with full attention layers."],
    ),
    (
        ["Do you like music?", "Do you like cats?", "Do you like dogs?", "Do you like stories?"],
        ["I have no feelings, but I like to talk about it."],
    ),
    (
        ["Can you help me?", "I need help.", "Please help me."],
        ["Yes, of course. What do you need?", "Yes. What can I do for you?"],
    ),
    (
        ["I am sad.", "I feel sad today.", "I had a bad day."],
        ["I am sorry to hear that. Do you want to hear a story?"],
    ),
    (
        ["I am happy.", "I had a good day.", "Today is a good day."],
        ["That is good to hear!", "I am glad to hear that!"],
    ),
    (
        ["Tell me a joke.", "Do you know a joke?", "Make me laugh."],
        [
            "Why did the book look sad? It had too many problems.",
            "What has hands but cannot clap? A clock.",
        ],
    ),
    (
        ["What is the weather like?", "What time is it?", "What day is it today?"],
        ["I do not know. I cannot see the world outside this chat."],
    ),
    (
        ["What is the meaning of life?", "Will it rain tomorrow?", "Who will win the game?"],
        ["I do not know. That is too hard for a tiny model."],
    ),
    (["Say hello.", "Say hello to me."], ["Hello!"]),
    (["Yes.", "Yes, please.", "OK.", "Okay."], ["Good. What do you want to know?"]),
    (
        ["Count to five.", "Count from one to five.", "Can you count to five?"],
        ["One, two, three, four, five."],
    ),
    (
        ["Count to ten.", "Count from one to ten.", "Can you count to ten?"],
        ["One, two, three, four, five, six, seven, eight, nine, ten."],
    ),
    (
        ["Name three colours.", "Name three colors.", "Tell me three colours."],
        ["Red, blue and green."],
    ),
    (["Name three animals.", "Tell me three animals."], ["Dog, cat and horse."]),
    (["Name three fruits.", "Tell me three fruits."], ["Apple, pear and banana."]),
    (
        ["What are the days of the week?", "Name the days of the week."],
        ["Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday."],
    ),
    (
        ["What are the four seasons?", "Name the four seasons."],
        ["The four seasons are spring, summer, autumn and winter."],
    ),
]
SYSTEM = [
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are a friendly assistant.",
    "Answer in one short sentence.",
    "You are a tiny assistant. Be brief.",
]


def talk(rng: random.Random) -> tuple[str, str]:
    """One exchange of small talk."""
    asked, answers = rng.choice(TALK)
    return rng.choice(asked), rng.choice(answers)


def name_chat(rng: random.Random) -> list[tuple[str, str]]:
    """The user gives a name or a taste, and asks for it later."""
    name = rng.choice(GIRLS + BOYS)
    asked = rng.choice([f"My name is {name}.", f"Hello, I am {name}.", f"Hi! My name is {name}."])
    reply = rng.choice([f"Hello, {name}! How can I help you?", f"Nice to meet you, {name}!"])
    turns = [(asked, reply)]
    if rng.random() < 0.5:
        taste = rng.choice(["red", "blue", "green", "yellow", "white", "black"])
        reply = f"{taste.capitalize()} is a nice colour."
        turns.append((f"My favourite colour is {taste}.", reply))
        later = ("What is my favourite colour?", f"Your favourite colour is {taste}.")
    else:
        taste = rng.choice(["dog", "cat", "bird", "horse", "rabbit"])
        turns.append((f"I have a {taste}.", f"That is nice. I like to hear about your {taste}."))
        later = ("Which animal do I have?", f"You have a {taste}.")
    if rng.random() < 0.5:
        turns.append(talk(rng))
    ends = [("What is my name?", f"Your name is {name}."), later]
    rng.shuffle(ends)
    return turns + ends[: rng.choice([1, 2])]


def repeat(rng: random.Random) -> tuple[str, str]:
    """Requests to repeat or spell a word."""
    word = rng.choice(
        [
            "cat",
            "dog",
            "sun",
            "red",
            "book",
            "tree",
            "fish",
            "moon",
            "star",
            "bird",
            "house",
            "bread",
            "green",
            "apple",
            "water",
            *GIRLS,
            *BOYS,
        ]
    )
    kind = rng.randrange(3)
    if kind == 0:
        return f"Spell the word {word}.", "-".join(word.upper()) + "."
    if kind == 1:
        return rng.choice([f"Say {word}.", f"Say the word {word}."]), f"{word}."
    number = str(rng.randint(10, 9999))
    return rng.choice([f"Repeat {number}.", f"Repeat the number {number}."]), f"{number}."
