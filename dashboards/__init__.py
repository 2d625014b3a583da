"""Prometheus rules and Grafana dashboards, generated from the agent's metric catalogue."""
