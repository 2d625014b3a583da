"""What being watched costs: workloads for `ranksight bench overhead`, interleaved with A/A controls."""
