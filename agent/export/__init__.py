"""From the observer's numbers to what Prometheus reads."""
