"""One training for each paper, variant and seed; and how long training steps take."""


rule train_variant:
    input:
        dataset=plan.training_set,
        test=plan.evaluation_set,
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
        mem_mb=growing(16000),
        runtime=growing(240),
        # Two minutes before the time is up Slurm sends TERM: the training saves its state and exits, the next attempt
        # goes on from there. Not USR1, which would kill Snakemake itself. Other clusters ignore this.
        slurm_extra="--signal=TERM@120",
    params:
        code=plan.family_code("train_variant"),
        settings=plan.training,
        # Not an output: Snakemake deletes the outputs of a failed job, and this is what the next attempt goes on from.
        checkpoints=plan.checkpoints,
    message:
        "Training {wildcards.paper}/{wildcards.variant}, seed {wildcards.seed} (progress: {log})"
    script:
        "../workflow/scripts/train_variant.py"


rule time_steps:
    input:
        unpack(plan.timing_sets),
    output:
        timing="<paper>/timings/{timing}.json",
    log:
        "<logs>/time_steps/{paper}-{timing}.log",
    benchmark:
        "<benchmarks>/time_steps/{paper}-{timing}.tsv"
    conda:
        "../envs/recaps.yaml"
    # More than any machine has: Snakemake lowers it to all the cores that it was given, so that no other job runs
    # beside the measurement. A profile for a cluster must set it.
    threads: 1000
    resources:
        gpu=plan.gpus,
        mem_mb=growing(16000),
        runtime=growing(60),
    params:
        code=plan.timing_code,
        variants=plan.timed_variants,
        options=plan.timing_options,
    message:
        "Timing {wildcards.timing} of {wildcards.paper} (nothing runs beside it)"
    script:
        "../workflow/scripts/time_steps.py"
