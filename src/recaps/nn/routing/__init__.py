"""Routing: from the votes or poses of input capsules to output capsules.

Each algorithm is one module in this folder. The module's name is the algorithm's name in YAML (`routing: {name: em,
iterations: 3}`). The module has one class that subclasses `VoteRouting` or `PoseRouting` from
`recaps.nn.routing.interface`. The keyword-only arguments of the constructor are the options of the algorithm.
`recaps.nn.routing.registry` finds the modules.
"""
