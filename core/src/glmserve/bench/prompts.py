"""The fixed prompts, written for this purpose and public with it. Their names say about how many tokens they have.

A number in front makes two copies of a prompt differ within the first tokens, so that no cache of prefixes can answer
for the model; the n-th copy is the same text in every run and on every server.
"""

from __future__ import annotations

_SHORT = "Explain to a child, in a few plain sentences, why the sea is salty and the rivers are not."

_PASSAGES = (
    """The lighthouse stood at the end of a causeway that the tide covered twice a day. Its keeper, a patient woman
called Marta Oyelaran, had learned to plan her errands around the water: flour and lamp oil on Mondays, letters on
Thursdays, and nothing at all in the week of the spring tides. She kept a notebook in which she wrote the hour of every
ship that passed, the colour of its funnel, and whether it had answered her signal. After eleven years the notebook had
become forty notebooks, and a young clerk from the harbour office came across the wet stones to read them. He wanted to
know how often the fog arrived before noon, because an insurance company had asked and nobody else had counted. Marta
made tea, cleared the table by the north window, and gave him a ruler. By evening he had drawn a curve that rose gently
in March, fell in June, and rose again when the herring came. He said that it was the first honest picture of the coast
he had ever seen. She answered that the picture was the easy part; the hard part had been to look out of the same window
every morning, even when there was nothing at all to write.""",
    """A loaf of bread is a small experiment that can be repeated every day. Flour holds two proteins which, once wet,
link into long elastic strands; kneading lines the strands up, and rest lets them relax. Yeast eats the sugars that
enzymes free from the starch, and gives back a gas that the strands hold in place as bubbles. Salt slows the yeast and
tightens the strands, so that a dough without it rises fast and then collapses. Water decides nearly everything else. A
stiff dough keeps its shape and bakes to a fine crumb; a wet one spreads, tears easily, and opens into large uneven
holes. Temperature is the baker's clock: eight degrees more will halve the time, and eight degrees less will double it,
which is why a dough may be left in a cold cellar overnight. In the oven the gas swells, the strands set, and the crust
dries until it browns. A loaf is done when it sounds hollow, but it is not finished; the crumb goes on setting for an
hour while it cools, and a slice that is cut too early will be gummy, whatever the recipe promised.""",
    """When the old railway was closed, the valley kept the line but not the trains. The sleepers rotted, the signals
were sold to a museum, and birches grew between the rails. Then the council of the three villages met to decide what
the long strip of land should become. The first proposal was a road, because a road is what one usually builds. The
second was a path for walkers and bicycles, because the slope had been laid out for steam engines and was gentle enough
for anyone. The third, from a retired surveyor, was to do nothing for five years and to count what came. They laughed,
and then they found that it cost nothing, so they agreed. In the first spring the surveyor counted nineteen kinds of
bird. In the second there were orchids on the embankment, where the cinders had kept the soil poor and warm. In the
third a family of otters moved into the flooded culvert. When the five years were over there was a path after all, but
a narrow one, which left the line at the culvert and joined it again on the other side, and a bench stood where one
could sit and wait, as people once had waited for the train.""",
    """To measure how fast a machine works is harder than it seems, for the machine is never alone. Another program
wakes up, a fan slows down, a disk decides to tidy itself, and the second run is not the first. The careful observer
therefore repeats, and takes the middle of what was seen rather than the best; the best is a story about luck. She
compares two machines by turns, one after the other and then again, so that a slow hour is slow for both. She writes
down what was fixed and what was free: the length of the question, the length of the answer, the number of those who
asked at once. She does not let a refusal pass for a quick reply, since an error is the fastest answer of all. She asks
what the reader will want to know. Someone who waits for the first word cares about one number, someone who reads along
cares about another, and the one who pays for the electricity cares about a third. Finally she publishes the questions
themselves, so that a stranger who doubts the result can ask them again, on another day and on another machine, and be
surprised in one direction or the other.""",
)

PROMPTS = {
    "short": _SHORT,
    "256": _PASSAGES[0],
    "1024": "\n\n".join(
        (*_PASSAGES, "Summarise the four passages above, one sentence for each, and say what they share.")
    ),
}
"""Name -> text."""


def prompt(name: str, copy: int) -> str:
    """Copy number `copy` of the prompt `name`. Raises KeyError for a name that is not in PROMPTS."""
    return f"{copy}. {PROMPTS[name]}\n"
