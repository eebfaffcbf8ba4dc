"""*Training products of expert capsules*."""
