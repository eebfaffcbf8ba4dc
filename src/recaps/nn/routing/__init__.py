"""Vote routing.

Every routing is a function `route(votes, ...) -> Routed`: votes of shape [B, I, J, D] from I input capsules to J output
capsules of D dimensions become the output capsules, and the coupling coefficients that led to them.
"""
