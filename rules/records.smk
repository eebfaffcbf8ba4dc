"""The record of each run: all numbers and pictures that tables and figures need."""


rule record_run:
    input:
        plan.measured_inputs,
        again=again("record_run"),
    output:
        numbers=layout.numbers(files.run()),
        arrays=layout.arrays(files.run()),
    log:
        files.log("record_run/{paper}-{variant}-seed-{seed}"),
    conda:
        "../envs/recaps.yaml"
    resources:
        mem_mb=growing(8000),
        runtime=growing(60),
    params:
        **plan.params("record_run"),
    message:
        "Record of {wildcards.paper}/{wildcards.variant}, seed {wildcards.seed}"
    script:
        "../workflow/scripts/stage.py"
