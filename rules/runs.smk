"""What is computed from each trained model: latents of whole sets and probes, heads, and the record of its run."""


rule read_model:
    input:
        model=trained["model"],
        config=trained["config"],
        sets=plan.read_sets,
        again=again("read_model"),
    output:
        # Existing parts that are still valid are kept, so Snakemake must not delete the files.
        latents=update(layout.latents(files.run())),
        probes=update(layout.probes(files.run())),
        scores=layout.scores(files.run()),
    log:
        files.log("read_model/{paper}-{variant}-seed-{seed}"),
    conda:
        "../envs/recaps.yaml"
    resources:
        gpu=plan.gpus,
        mem_mb=growing(16000),
        runtime=growing(60),
    params:
        **plan.params("read_model"),
    message:
        "Latents and probes of {wildcards.paper}/{wildcards.variant}, seed {wildcards.seed}"
    script:
        "../workflow/scripts/stage.py"


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
