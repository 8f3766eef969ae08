"""Which language is a text in? A Python callable as a model: no package is needed but numpy.

Every language has a profile of letter pairs, counted in a few sentences of it; a text belongs to the language
whose pairs make it most likely.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

SENTENCES = {
    "de": (
        "Das Wetter wird morgen schön, und wir wollen mit den Kindern an den See fahren. Ich habe "
        "gestern noch nicht gewusst, dass der Zug so spät kommt. Können Sie mir bitte sagen, wo die "
        "nächste Apotheke ist? Es gibt viele Dinge, über die man sich freuen kann, auch wenn es "
        "einmal regnet und niemand Zeit hat."
    ),
    "en": (
        "The weather will be fine tomorrow, and we want to go to the lake with the children. I did "
        "not know yesterday that the train would be this late. Could you please tell me where the "
        "nearest pharmacy is? There are many things to be happy about, even when it rains and nobody "
        "has any time for them."
    ),
    "es": (
        "Mañana hará buen tiempo y queremos ir al lago con los niños. Ayer todavía no sabía que el "
        "tren llegaba tan tarde. ¿Me puede decir, por favor, dónde está la farmacia más cercana? Hay "
        "muchas cosas de las que uno puede alegrarse, aunque llueva y nadie tenga tiempo para ellas."
    ),
    "fr": (
        "Il fera beau demain et nous voulons aller au lac avec les enfants. Je ne savais pas encore "
        "hier que le train arriverait si tard. Pouvez-vous me dire, s'il vous plaît, où se trouve la "
        "pharmacie la plus proche ? Il y a beaucoup de choses dont on peut se réjouir, même quand il "
        "pleut et que personne n'a le temps."
    ),
    "it": (
        "Domani farà bel tempo e vogliamo andare al lago con i bambini. Ieri non sapevo ancora che il "
        "treno arrivasse così tardi. Mi può dire, per favore, dove si trova la farmacia più vicina? "
        "Ci sono molte cose di cui ci si può rallegrare, anche quando piove e nessuno ha tempo."
    ),
}
LANGUAGES = list(SENTENCES)


def pairs(text: str) -> Iterator[str]:
    letters = "".join(letter if letter.isalpha() else " " for letter in text.lower())
    return (first + second for first, second in pairwise(" ".join(["", *letters.split(), ""])))


def learned(text: str) -> dict[str, float]:
    """Return the logarithm of each pair's chance; "" stands for one that was never seen."""
    counts = Counter(pairs(text))
    total = counts.total() + 1000  # as if every one of 1000 pairs had been seen once more
    return {"": math.log(1 / total), **{pair: math.log((n + 1) / total) for pair, n in counts.items()}}


PROFILES = [learned(text) for text in SENTENCES.values()]


def chances(text: str) -> list[float]:
    """Return the chance of each language, in the order of LANGUAGES."""
    own = list(pairs(text))
    scores = [sum(profile.get(pair, profile[""]) for pair in own) for profile in PROFILES]
    powers = [math.exp(score - max(scores)) for score in scores]
    return [power / sum(powers) for power in powers]


def detect(TEXT: npt.NDArray[np.object_]) -> dict[str, Any]:  # noqa: N803 (the input's name)
    """TEXT: BYTES [1] for each request; the answer is LANGUAGE (BYTES [1]) and CONFIDENCE (FP32 [1])."""
    every = [chances(text.decode(errors="replace")) for text in TEXT[:, 0]]
    languages = [[LANGUAGES[scores.index(max(scores))].encode()] for scores in every]
    return {
        "LANGUAGE": np.array(languages, np.object_),
        "CONFIDENCE": np.array([[max(scores)] for scores in every], np.float32),
    }


def _text(generator: np.random.Generator, words: int) -> dict[str, Any]:
    vocabulary = SENTENCES[str(generator.choice(LANGUAGES))].split()
    return {"TEXT": np.array([" ".join(generator.choice(vocabulary, words)).encode()], np.object_)}


# For `astrarium profile`: what requests look like, by application. Long texts take longer.
detect.applications = {  # type: ignore[attr-defined]
    "chat": lambda generator: _text(generator, int(generator.integers(3, 15))),
    "mail": lambda generator: _text(generator, int(generator.integers(80, 400))),
}
