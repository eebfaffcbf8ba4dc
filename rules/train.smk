"""One training for each paper, variant and seed."""


rule train_variant:
    input:
        plan.training_set,
    output:
        model="<run>/model.safetensors",
        config="<run>/config.json",
        history="<run>/history.csv",
        record="<run>/record.json",
    log:
        "<logs>/train_variant/{paper}-{variant}-seed-{seed}.log",
    benchmark:
        "<benchmarks>/train_variant/{paper}-{variant}-seed-{seed}.tsv"
    conda:
        "../envs/recaps.yaml"
    threads: 2
    resources:
        gpu=plan.gpus,
        mem_mb=growing(8000),
        runtime=growing(240),
    params:
        code=plan.family_code("train_variant"),
        settings=plan.training,
        # Not an output: Snakemake deletes the outputs of a failed job, and this is what the next attempt goes on from.
        checkpoints=plan.checkpoints,
    message:
        "Training {wildcards.paper}/{wildcards.variant}, seed {wildcards.seed} (progress: {log})"
    script:
        "../workflow/scripts/train_variant.py"
