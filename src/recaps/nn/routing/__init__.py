"""Vote routing.

Every routing is a function `route(votes, ...) -> Routed`: votes of shape [B, I, J, D] from I input capsules to J output
capsules of D dimensions become the output capsules, and the coupling coefficients that led to them. Discriminative
routing gives them twice (`TwoWays`), since its coefficients learn from another objective than the votes.
"""
