"""stop_conditions.toml: what is wrong is said with file, field and value."""

from pathlib import Path

import pytest

from ranksight.agent.errors import RanksightError
from ranksight.agent.policy.conditions import Action, Condition, StopConditions, load, reference


def written(folder: Path, text: str) -> Path:
    path = folder / "stop_conditions.toml"
    path.write_text(text)
    return path


def test_everything_is_observed_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    assert load(written(tmp_path, "")) == StopConditions()
    policy = load(written(tmp_path, '[[conditions]]\nname = "a"\nkinds = ["straggler"]'))
    assert policy.conditions == (Condition(name="a", kinds=("straggler",)),)
    assert policy.conditions[0].action is Action.OBSERVE


def test_the_example_of_the_reference_is_a_file_that_can_be_used(tmp_path: Path) -> None:
    example = reference().split("```toml\n")[1].split("```")[0]
    policy = load(written(tmp_path, example))
    assert [condition.action for condition in policy.conditions] == ["stop", "kill", "checkpoint_and_stop", "observe"]
    assert policy.restart_budget == 2


CONDITION = '[[conditions]]\nname = "a"\n'
FINDING = CONDITION + 'kinds = ["nonfinite"]\n'
METRIC = CONDITION + 'metric = "ranksight_loss"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense = 1", "nonsense: unknown key"),
        ("margin_steps = 0", r"margin_steps = 0: .*greater than or equal to 1"),
        ("leave_seconds = inf", "leave_seconds = inf: .*finite"),
        ('[[conditions]]\nkinds = ["nonfinite"]', r"conditions\.0\.name: Field required"),
        (CONDITION, "condition 'a' needs either kinds or a metric"),
        (FINDING + 'metric = "ranksight_loss"', "condition 'a' needs either kinds or a metric"),
        (FINDING + "threshold = 1", "threshold and labels go with a metric"),
        (CONDITION + 'kinds = ["nan"]', r"conditions\.0\.kinds = \['nan'\]: 'nan' is no kind of finding; there are rank_dead, "),
        (FINDING + 'exempt_phases = ["lunch"]', "'lunch' is no phase; there are other, startup"),
        (FINDING + 'action = "explode"', r"conditions\.0\.action = 'explode': .*'observe'"),
        (FINDING + 'severity = "bad"', r"conditions\.0\.severity = 'bad'"),
        (FINDING + FINDING, r"names must be unique, \['a'\] are not"),
        (METRIC, "metric 'ranksight_loss' needs a threshold"),
        (CONDITION + 'metric = "ranksight_lose"\nthreshold = 1', "'ranksight_lose' is not a metric"),
        (CONDITION + 'metric = "ranksight_step_duration_seconds"\nthreshold = 1', "is a histogram"),
        (METRIC + 'threshold = 1\nlabels = {axis = "dp"}', r"has labels \['rank'\], not \['axis'\]"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(RanksightError, match=said) as error:
        load(path)
    assert str(path) in str(error.value)
