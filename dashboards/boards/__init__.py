"""The dashboards, one module each, in the order in which one looks at them."""

from __future__ import annotations

from ranksight.dashboards.boards import agent, collectives, numerics, overview, stragglers

BOARDS = (overview.BOARD, collectives.BOARD, stragglers.BOARD, numerics.BOARD, agent.BOARD)
