"""Synthetic words to convert to Pig Latin."""

from __future__ import annotations

import re
from string import ascii_lowercase

import numpy as np

from ratchet.scenarios.language_task.sources.base import SOURCES, DrawnTasks
from ratchet.scenarios.language_task.task import Task

_ONSETS = (
    *("", "b", "c", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "qu", "r", "s", "t", "v"),
    *("w", "y", "z", "bl", "br", "ch", "cl", "cr", "dr", "fl", "fr", "gl", "gr", "pl", "pr", "sc"),
    *("sh", "sk", "sl", "sm", "sn", "sp", "st", "sw", "th", "tr", "tw", "wh", "str", "squ", "thr"),
)
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "ee", "oa", "oo", "ou")
_AFTER_CLUSTERS = ("y",)
_CODAS = ("", "", "b", "ck", "d", "g", "l", "m", "n", "nd", "ng", "nt", "p", "r", "rt", "sh", "t")
_BEGINNING = re.compile(r"(?:[bcdfghjklmnprstvwxz]*qu|y(?=[aeiou])|[bcdfghjklmnpqrstvwxz]+|)")


@SOURCES.register("pig_latin")
class PigLatin(DrawnTasks):
    """Words in pig Latin: ``quick apple=`` is answered by ``ickquay appleway``."""

    instruction = (
        "Say the words before the sign = in Pig Latin: the consonants that a word begins with (qu"
        " is one) go behind it, and ay after them; a word that begins with a vowel gets way."
        " Answer with nothing else."
    )

    def draw(self, rng: np.random.Generator) -> Task:
        """Sample words."""
        words = [self._draw_word(rng) for _ in range(self.section.pig_latin.num_words)]
        text = " ".join(words)
        return Task(text, f"{text}=", " ".join(map(pig_latin, words)))

    def characters(self) -> str:
        """Return small letters, the space and ``=``."""
        return ascii_lowercase + " ="

    def _draw_word(self, rng: np.random.Generator) -> str:
        count = 1 + int(rng.integers(self.section.pig_latin.max_syllables))
        return "".join(_draw_syllable(rng) for _ in range(count))


def pig_latin(word: str) -> str:
    """Return a word of small letters in Pig Latin.

    Initial consonants, including ``qu``, move to the end, with ``ay``; a word that starts with a
    vowel gets ``way``. A ``y`` is a consonant only before a vowel at the start.
    """
    match = _BEGINNING.match(word)
    consonants = match.group() if match else ""
    return f"{word[len(consonants) :]}{consonants}ay" if consonants else f"{word}way"


def _draw_syllable(rng: np.random.Generator) -> str:
    onset, coda = _one(rng, _ONSETS), _one(rng, _CODAS)
    takes_y = onset not in ("", "y") and not onset.endswith("qu")
    return onset + _one(rng, _VOWELS + _AFTER_CLUSTERS * takes_y) + coda


def _one(rng: np.random.Generator, choices: tuple[str, ...]) -> str:
    return choices[int(rng.integers(len(choices)))]
