"""Which optimizers make up one step, as sequences of optimizer steps."""

import pytest

from ranksight.hooks.cycle import OptimizerCycle


def ends(made: str, stepped: str) -> str:
    """`stepped` with "|" where a step of the training ended: late when it had ended before."""
    cycle, out = OptimizerCycle(), ""
    for name in made:
        cycle.add(ord(name))
    for name in stepped:
        boundary = cycle.stepped(ord(name))
        out += ("<" if boundary.missed else "") + name + ("|" if boundary.complete else "")
    return out


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ("a", "a|a|a|"),
        ("dg", "dg|dg|dg|"),
        ("dg", "gd|gd|"),
        ("ab", "a<a|a|a|"),  # b never steps: noticed once, when a comes again
        ("dg", "d<d|d|gd|d|"),  # g steps rarely: it does not end steps of its own
        ("", "a|a|"),  # made before anybody looked
        ("abc", "abc|cab|"),
    ],
)
def test_ends_of_steps(made: str, expected: str) -> None:
    assert ends(made, expected.replace("|", "").replace("<", "")) == expected


def test_an_optimizer_made_later_joins_the_cycle() -> None:
    cycle = OptimizerCycle()
    cycle.add(1)
    assert cycle.stepped(1).complete
    cycle.add(2)
    assert not cycle.stepped(1).complete
    assert cycle.stepped(2).complete


def test_a_dropped_optimizer_is_not_waited_for() -> None:
    cycle = OptimizerCycle()
    cycle.add(1)
    cycle.add(2)
    cycle.drop(2)
    assert len(cycle) == 1
    assert cycle.stepped(1).complete
