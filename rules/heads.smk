"""Classifiers fitted on latents."""


rule evaluate_heads:
    input:
        latents=layout.latents(files.run()),
        again=again("evaluate_heads"),
    output:
        heads=layout.heads(files.run()),
    log:
        files.log("evaluate_heads/{paper}-{variant}-seed-{seed}"),
    conda:
        "../envs/recaps.yaml"
    threads: plan.head_threads
    resources:
        # For an SVM on 60,000 latents, with two threads.
        mem_mb=growing(10000),
        runtime=growing(240),
    params:
        **plan.params("evaluate_heads"),
    message:
        "Heads of {wildcards.paper}/{wildcards.variant}, seed {wildcards.seed}"
    script:
        "../workflow/scripts/stage.py"
