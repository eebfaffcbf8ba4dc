"""Routing: from the votes or poses of input capsules to output capsules.

Each algorithm is a subclass of `VoteRouting` or `PoseRouting` from `recaps.nn.routing.interface`. YAML selects it by
its name (`routing: {name: em, iterations: 3}`). `recaps.nn.routing.options` has a section for each, with its options. A
class of any other module is named as `module:Class`; its attribute `Options` is the section.
"""
