"""The laboratory: load generators, peers and bare limits, compared within one run."""
