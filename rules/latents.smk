"""What is computed from trained models: latents of whole sets, probes for figures, accuracies of their class scores."""


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
