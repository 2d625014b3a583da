"""What a PromQL expression asks for: the metrics in it, with the labels it matches them by or aggregates them to."""

from __future__ import annotations

from collections.abc import Iterator

import promql_parser as promql


def names_and_labels(expr: promql.Expr, labels: frozenset[str] = frozenset()) -> Iterator[tuple[str, set[str]]]:
    """Each metric with the labels that it must have; `labels` come from the expressions around `expr`."""
    match expr:
        case promql.AggregateExpr():
            named = frozenset(expr.modifier.labels) if expr.modifier else frozenset()
            yield from names_and_labels(expr.expr, labels | named)
        case promql.BinaryExpr():
            # A label asked for outside may come from either side, and one that is matched on must be on both.
            matching = expr.modifier.matching if expr.modifier else None
            named = frozenset(matching.labels) if matching else frozenset()
            yield from names_and_labels(expr.lhs, named)
            yield from names_and_labels(expr.rhs, named)
        case promql.Call():
            for argument in expr.args:
                yield from names_and_labels(argument, labels)
        case promql.ParenExpr() | promql.SubqueryExpr() | promql.UnaryExpr():
            yield from names_and_labels(expr.expr, labels)
        case promql.MatrixSelector():
            yield from names_and_labels(expr.vector_selector, labels)
        case promql.VectorSelector():
            matched = {matcher.name for matcher in expr.matchers.matchers}
            yield expr.name or "", {*labels, *matched} - {"__name__"}
        case _:
            return
