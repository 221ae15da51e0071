"""A small made-up world as pages, and questions about it, from a seed."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from musique import Page, Paragraph, Question, Step

NAMES = (
    *("Falcon", "Juniper", "Copper", "Lantern", "Meridian", "Harvest", "Granite", "Orchid"),
    *("Beacon", "Cobalt", "Willow", "Saffron", "Raven", "Crystal", "Compass", "Thistle"),
    *("Marble", "Pelican", "Amber", "Cedar", "Dolphin", "Ember", "Foxglove", "Garnet"),
    *("Heron", "Ivory", "Jasper", "Kestrel", "Lotus", "Magnolia", "Nutmeg", "Onyx"),
    *("Poppy", "Quartz", "Robin", "Sparrow", "Topaz", "Umber", "Violet", "Walnut"),
)
KINDS = ("Bridge", "Library", "Theatre", "Museum", "Tower", "Station")
FIRST_NAMES = (
    *("Ada", "Boris", "Clara", "Dmitri", "Elsa", "Farid", "Greta", "Henrik", "Ines", "Jonas"),
    *("Kamila", "Lorenzo", "Mina", "Nadia", "Otto", "Petra", "Rafael", "Selma", "Tomas", "Ursula"),
)
LAST_NAMES = (
    *("Hale", "Marsh", "Crane", "Novak", "Lindqvist", "Okafor"),
    *("Brandt", "Sato", "Moreau", "Quill", "Castell", "Varga"),
)
TOWN_STARTS = (
    *("Ash", "Bren", "Cal", "Dun", "Elm", "Fen", "Gar", "Hol", "Kel", "Lor"),
    *("Mel", "Nor", "Oak", "Pel", "Ros", "Sel", "Tam", "Ul", "Wes", "Yar"),
)
TOWN_ENDS = ("combe", "ford", "mere", "wick", "bury", "dale")
RIVERS = ("Sill", "Arden", "Wye", "Tarn", "Lune", "Brent", "Severn", "Kern", "Isar", "Dove")
PRODUCTS = (
    "glass",
    "clocks",
    "cheese",
    "boats",
    "paper",
    "honey",
    "carpets",
    "salt",
    "tea",
    "lace",
)
INSTRUMENTS = ("violin", "flute", "harp", "cello", "trumpet", "piano", "guitar", "oboe", "drums")
PROFESSIONS = ("architect", "engineer", "sculptor", "surveyor")
YEARS = range(1801, 1996)

DISTRACTORS = 2
"""Paragraphs of a question that do not support its answer."""


@dataclass(frozen=True, slots=True)
class Town:
    name: str
    river: str
    product: str

    @property
    def page(self) -> Page:
        return Page(
            self.name,
            f"{self.name} is a town on the river {self.river}. {self.name} is known for its "
            f"{self.product}.",
        )


@dataclass(frozen=True, slots=True)
class Person:
    name: str
    home: Town
    profession: str
    instrument: str

    @property
    def page(self) -> Page:
        article = "an" if self.profession[0] in "ae" else "a"
        return Page(
            self.name,
            f"{self.name} was {article} {self.profession} and was born in {self.home.name}. "
            f"{self.name} played the {self.instrument}.",
        )


@dataclass(frozen=True, slots=True)
class Building:
    name: str
    town: Town
    designer: Person
    year: int

    @property
    def page(self) -> Page:
        kind = self.name.split()[-1].lower()
        return Page(
            self.name,
            f"The {self.name} is a {kind} in {self.town.name}. {self.designer.name} designed the "
            f"{self.name}, and it was opened in {self.year}.",
        )


@dataclass(frozen=True, slots=True)
class World:
    """The towns, people and buildings of one split: no other split has any of them."""

    towns: list[Town]
    people: list[Person]
    buildings: list[Building]

    @property
    def pages(self) -> list[Page]:
        things: tuple[Town | Person | Building, ...] = (
            *self.towns,
            *self.people,
            *self.buildings,
        )
        return [thing.page for thing in things]


def worlds(seed: int = 0) -> tuple[World, World]:
    """Return the world of training and the world of validation, of 300 pages each."""
    chance = random.Random(seed)
    towns = [start + end for start in TOWN_STARTS for end in TOWN_ENDS]
    last_names, names = list(LAST_NAMES), list(NAMES)
    for values in (towns, last_names, names):
        chance.shuffle(values)
    halves = [
        _world(chance, towns[half::2], last_names[half::2], names[half::2]) for half in (0, 1)
    ]
    return halves[0], halves[1]


def _world(
    chance: random.Random, towns: Sequence[str], last_names: Sequence[str], names: Sequence[str]
) -> World:
    places = [Town(name, chance.choice(RIVERS), chance.choice(PRODUCTS)) for name in towns]
    people = [
        Person(
            f"{first} {last}",
            chance.choice(places),
            chance.choice(PROFESSIONS),
            chance.choice(INSTRUMENTS),
        )
        for last in last_names
        for first in FIRST_NAMES
    ]
    chance.shuffle(people)
    titles = [f"{name} {kind}" for name in names for kind in KINDS]
    buildings = [
        Building(title, _away(chance, places, designer), designer, chance.choice(YEARS))
        for title, designer in zip(titles, people, strict=True)
    ]
    return World(places, people, buildings)


def _away(chance: random.Random, places: Sequence[Town], designer: Person) -> Town:
    """Return a town that is not the designer's: else one page answers a question of two hops."""
    return chance.choice([place for place in places if place != designer.home])


def questions(world: World, split: str, count: int, seed: int = 0) -> list[Question]:
    """Return `count` questions, two thirds of them with one hop and one third with two."""
    chance = random.Random(f"{seed}/{split}")
    two = count // 3
    one_hop, two_hop = list(_one_hop(world)), list(_two_hop(world))
    drafts = chance.sample(one_hop, count - two) + chance.sample(two_hop, two)
    chance.shuffle(drafts)
    return [
        _question(chance, world, f"{split}-{number:03}", draft)
        for number, draft in enumerate(drafts)
    ]


@dataclass(frozen=True, slots=True)
class _Draft:
    text: str
    steps: tuple[tuple[str, str, Page], ...]
    """Question, answer and page of each hop."""
    alias: str | None = None


def _one_hop(world: World) -> Iterator[_Draft]:
    for building in world.buildings:
        for text, answer in (
            (f"In which town is the {building.name}?", building.town.name),
            (f"Who designed the {building.name}?", building.designer.name),
            (f"In which year was the {building.name} opened?", str(building.year)),
        ):
            yield _Draft(text, ((text, answer, building.page),))
    for person in world.people:
        text = f"In which town was {person.name} born?"
        yield _Draft(text, ((text, person.home.name, person.page),))
        text = f"Which instrument did {person.name} play?"
        yield _Draft(text, ((text, person.instrument, person.page),))
    for town in world.towns:
        text = f"On which river is {town.name}?"
        yield _Draft(text, ((text, town.river, town.page),), f"river {town.river}")
        text = f"What is {town.name} known for?"
        yield _Draft(text, ((text, town.product, town.page),))


def _two_hop(world: World) -> Iterator[_Draft]:
    for building in world.buildings:
        designer, town = building.designer, building.town
        first = (f"Who designed the {building.name}?", designer.name, building.page)
        yield _Draft(
            f"In which town was the designer of the {building.name} born?",
            (first, ("In which town was #1 born?", designer.home.name, designer.page)),
        )
        yield _Draft(
            f"Which instrument did the designer of the {building.name} play?",
            (first, ("Which instrument did #1 play?", designer.instrument, designer.page)),
        )
        where = (f"In which town is the {building.name}?", town.name, building.page)
        yield _Draft(
            f"On which river is the town of the {building.name}?",
            (where, ("On which river is #1?", town.river, town.page)),
            f"river {town.river}",
        )


def _question(chance: random.Random, world: World, name: str, draft: _Draft) -> Question:
    supporting = [page for _, _, page in draft.steps]
    others = [page for page in world.pages if page not in supporting]
    pages = [*supporting, *chance.sample(others, DISTRACTORS)]
    chance.shuffle(pages)
    return Question(
        id=f"{len(draft.steps)}hop-{name}",
        question=draft.text,
        paragraphs=tuple(
            Paragraph(place, page.title, page.text, page in supporting)
            for place, page in enumerate(pages)
        ),
        steps=tuple(
            Step(number, text, answer, pages.index(page))
            for number, (text, answer, page) in enumerate(draft.steps)
        ),
        answer=draft.steps[-1][1],
        aliases=(draft.alias,) if draft.alias else (),
        answerable=True,
    )
