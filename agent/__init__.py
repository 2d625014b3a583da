"""The daemon and the `ranksight` command: reads rings, joins ranks, measures, reports. Never imports torch."""
