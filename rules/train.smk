"""One training run per paper, variant and seed; and the time of training steps."""


rule train_variant:
    input:
        unpack(plan.training_inputs),
        again=again("train_variant"),
    output:
        **trained,
    log:
        files.log("train_variant/{paper}-{variant}-seed-{seed}"),
    conda:
        "../envs/recaps.yaml"
    threads: 2
    resources:
        gpu=plan.gpus,
        mem_mb=growing(16000),
        runtime=plan.training_minutes,
        # Slurm sends TERM two minutes before the time limit: the training saves its state and exits, and the next
        # attempt continues. Not USR1, which would kill Snakemake. Other clusters ignore this.
        slurm_extra="--signal=TERM@120",
        # In Slurm, so many trainings share a GPU, in one job with this percentage of the time of its longest training
        # alone. Eight of `discriminative` side by side took up to 170 on an H200, under MPS.
        runs_per_gpu=1,
        shared_time_percent=200,
    params:
        **plan.params("train_variant"),
    message:
        "Training {wildcards.paper}/{wildcards.variant}, seed {wildcards.seed} (progress: {log})"
    script:
        "../workflow/scripts/stage.py"


rule time_steps:
    input:
        unpack(plan.timing_sets),
        again=again("time_steps"),
    output:
        timing=files.timing(),
    log:
        files.log("time_steps/{paper}-{timing}"),
    conda:
        "../envs/recaps.yaml"
    # More than any machine has. Snakemake lowers it to the number of its cores, so that no other job runs beside the
    # measurement. A profile for a cluster must set it, and `profiles/smoke` sets one.
    threads: 1000
    resources:
        gpu=plan.gpus,
        mem_mb=growing(16000),
        runtime=growing(60),
    params:
        **plan.params("time_steps"),
    message:
        "Timing {wildcards.timing} of {wildcards.paper}"
    script:
        "../workflow/scripts/stage.py"
