"""The calculator: what pinning an amount will take, from prices measured here, recorded elsewhere, or assumed."""
