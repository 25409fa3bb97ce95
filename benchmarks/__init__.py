"""Benchmarks: what tickmind costs beside the bare minimum, measured in the same run."""
