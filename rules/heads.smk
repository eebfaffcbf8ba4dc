"""Classifiers fitted on latents."""


rule evaluate_head:
    input:
        unpack(plan.head_latents),
    output:
        result=layout.head(files.run()),
    log:
        files.log("evaluate_head/{paper}-{variant}-seed-{seed}-{head}-{protocol}"),
    benchmark:
        files.benchmark("evaluate_head/{paper}-{variant}-seed-{seed}-{head}-{protocol}")
    conda:
        "../envs/recaps.yaml"
    resources:
        # For an SVM on 60,000 latents.
        mem_mb=growing(8000),
        runtime=growing(240),
    params:
        code=plan.code("evaluate_head"),
        head=plan.head,
        protocol=plan.protocol,
    message:
        "Head {wildcards.head} on {wildcards.paper}/{wildcards.variant}, seed {wildcards.seed}, protocol {wildcards.protocol}"
    script:
        "../workflow/scripts/stage.py"
