"""Routing: from the votes or poses of input capsules to output capsules.

An algorithm is one module here, named as it is in YAML (`routing: {name: em, iterations: 3}`). It has one class that
subclasses `VoteRouting` or `PoseRouting` of `recaps.nn.routing.interface`; the keyword-only arguments of its
constructor are its options. `recaps.nn.routing.registry` finds it; nothing lists it.
"""
