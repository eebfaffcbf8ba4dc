"""*Routing Towards Discriminative Power of Class Capsules*."""
