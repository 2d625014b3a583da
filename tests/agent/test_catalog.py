"""The metric catalogue keeps to the conventions."""

from ranksight.agent import catalog
from ranksight.agent.catalog import Type


def test_names_follow_the_conventions() -> None:
    assert len(catalog.BY_NAME) == len(catalog.METRICS)
    for spec in catalog.METRICS:
        assert spec.name.startswith("ranksight_")
        assert spec.name.endswith("_total") == (spec.type == Type.COUNTER)
        if spec.unit:
            assert spec.name.removesuffix("_total").endswith("_" + spec.unit)
        assert "quantile" not in spec.labels
        assert spec.help.endswith(".")


def test_no_label_is_unbounded() -> None:
    allowed = {
        "rank", "axis", "op", "size", "window", "tail", "group", "ranks", "members", "ring", "part", "thread",
        "local_rank", "world_size", "generation", "tap", "run", "fate", "kind", "severity", "direction", "layer", "expert", "measure",
    }  # fmt: skip
    assert {label for spec in catalog.METRICS for label in spec.labels} <= allowed
