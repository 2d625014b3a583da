"""From a bad step back to the first thing that went wrong, and forward to what it touched (`ranksight why`)."""
