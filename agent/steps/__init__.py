"""Steps of all ranks: what their events say, one row per step, and findings about slow ranks and numerics."""
